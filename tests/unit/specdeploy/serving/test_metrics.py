"""Metrics that several threads change."""

import threading
import time
from pathlib import Path
from typing import Any

from helpers.deployment_files import write_deployment
from specdeploy.config.load import load_deployment
from specdeploy.manifest import CurrentBuild
from specdeploy.planner.schedule import plan_from_config
from specdeploy.runtime.request import RequestStats
from specdeploy.serving.metrics import ServingMetrics


class OneAtATime:
    """A MetricFamily that notices when two threads are inside any of its metrics."""

    COUNTER, GAUGE = "counter", "gauge"
    busy = threading.Lock()
    overlaps = 0

    def __init__(self, **_: Any) -> None:
        """Any family."""

    def Metric(self, **_: Any) -> "OneAtATime":  # noqa: N802 - Triton's name
        return self

    def increment(self, _: float) -> None:
        if not self.busy.acquire(blocking=False):
            type(self).overlaps += 1
            return
        time.sleep(0)  # another thread may run here
        self.busy.release()

    set = increment


def test_one_thread_at_a_time_touches_a_metric(tmp_path: Path) -> None:
    loaded = load_deployment(write_deployment(tmp_path), tmp_path)
    build = CurrentBuild(
        deployment="tiny",
        build_id="b1",
        target_folder="b1/target",
        draft_folder=None,
        config_digest=loaded.digest,
        config=loaded.config,
        plan=plan_from_config(loaded.config),
    )
    metrics = ServingMetrics(build, 1, OneAtATime)

    def work() -> None:
        for _ in range(500):
            metrics.observe_load(1, 1)
            metrics.count("chat", RequestStats(num_drafts=1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert OneAtATime.overlaps == 0

"""The LLM API lane behind a real Triton server, with a stand-in for TensorRT-LLM inside the stub: no GPU is needed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.deployment_files import write_deployment
from helpers.tiny_checkpoint import make_checkpoint
from integration.conftest import SERVING, Deployed, free_port
from integration.test_llm import answer, answer_all, assert_idle, completion, ids, request, text
from specdeploy.config.load import load_deployment
from specdeploy.contract import Lane
from specdeploy.manifest import CurrentBuild, write_current_build
from specdeploy.packager.pbtxt import render_pbtxt
from specdeploy.packager.repository import public_model_config
from specdeploy.planner.schedule import plan_from_config
from specdeploy.serving.installation import find_installation
from specdeploy.serving.launch import LaunchPlan, new_shm_prefix
from specdeploy.serving.server import start_server, stop_server
from specdeploy_client.transport import RequestRefusedError

pytestmark = pytest.mark.integration

NAME = "front"
PROMPTS = ["item one then item one then item one", "a", "1 2 3 1 2 3 1 2", "short answers"]
MODEL = """
import sys

sys.path.insert(0, {tests!r})
from helpers import fake_llm

fake_llm.install(fake_llm.Behaviour(runs_torch=True))
from specdeploy.serving.model import TritonPythonModel

__all__ = ["TritonPythonModel"]
"""


def serve(root: Path) -> Deployed:
    ports = {"http_port": free_port(), "grpc_port": free_port(), "metrics_port": free_port()}
    settings: dict[str, Any] = {
        "lane": "trtllm_llmapi",
        "serving": {**SERVING, **ports},
        "tensorrt_llm": {"version": "1.2.1", "gpu": "h100", "plain_instance": "beside"},
    }
    loaded = load_deployment(write_deployment(root / "configs", NAME, settings), root / "configs")
    config = loaded.config
    make_checkpoint(root / "engines" / "b1" / "target")
    arguments = {"model": "target", "max_batch_size": SERVING["max_rows"], "max_seq_len": SERVING["max_seq_len"]}
    speculation = {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3}
    for name, values in (
        ("llm_args.yaml", arguments | {"speculative_config": speculation}),
        ("llm_args_plain.yaml", arguments),
    ):
        (root / "engines" / "b1" / name).write_text(yaml.safe_dump(values))
    build = CurrentBuild(
        deployment=NAME,
        build_id="b1",
        target_folder="b1/target",
        draft_folder=None,
        config_digest=loaded.digest,
        config=config,
        plan=plan_from_config(config),
    )
    write_current_build(root / "engines", build)
    model = root / "triton_repo" / NAME / "llm"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(render_pbtxt(public_model_config(config)))
    (model / "1" / "model.py").write_text(MODEL.format(tests=str(Path(__file__).parents[1])))
    plan = LaunchPlan(
        deployment=NAME,
        build_id="b1",
        config_digest=loaded.digest,
        serving=config.serving,
        model_repository=model.parent,
        engines_root=root / "engines",
        state_folder=root / "state" / NAME,
        installation=find_installation(),
        shm_prefix=new_shm_prefix(NAME),
        lane=Lane.TORCH,  # started as the embedded server is: there is no container here
    )
    state, _ = start_server(plan, timeout_s=90.0)
    return Deployed(root, loaded, state)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    root = tmp_path_factory.mktemp("front")
    try:
        yield serve(root)
    finally:
        stop_server(root / "state", NAME, grace_s=3.0)


def test_outputs_on_equal_off_streamed_or_whole(front: Deployed) -> None:
    alone = [answer(front, request(prompt, num_draft_tokens=0)) for prompt in PROMPTS]
    together = answer_all(front, [request(prompt) for prompt in PROMPTS])
    whole = answer_all(front, [request(prompt, stream=False) for prompt in PROMPTS])
    assert [ids(messages) for messages in together] == [ids(messages) for messages in alone]
    assert [ids(messages) for messages in whole] == [ids(messages) for messages in alone]
    assert [text(messages) for messages in whole] == [text(messages) for messages in together]
    assert {len(messages) for messages in whole} == {1}
    assert {completion(messages).speculation for messages in alone} == {"off:requested"}
    assert {completion(messages).speculation for messages in together} == {"on"}
    assert any(len(message.output_ids or ()) > 1 for messages in together for message in messages)
    assert sum(completion(messages).total_accepted_draft_tokens or 0 for messages in together) > 0
    assert_idle(front)


def test_sampling_is_not_drafted_for_by_this_version(front: Deployed) -> None:
    last = completion(answer(front, request(temperature=0.7)))
    assert last.speculation == "off:sampling"
    assert last.total_draft_tokens == 0


def test_a_stop_word_is_found_and_cut_off(front: Deployed) -> None:
    full = text(answer(front, request(max_tokens=40)))
    word = full[10:13]
    messages = answer(front, request(max_tokens=40, stop_words=(word,)))
    assert text(messages) == full[: full.index(word)]
    assert completion(messages).finish_reason == "stop"
    assert_idle(front)


def test_a_refusal_names_the_field(front: Deployed) -> None:
    with pytest.raises(RequestRefusedError, match=r"num_draft_tokens: 2 is shorter than the 4 this lane always drafts"):
        answer(front, request(num_draft_tokens=2))
    assert_idle(front)

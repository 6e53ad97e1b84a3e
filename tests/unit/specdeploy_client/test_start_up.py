"""What a command waits for before it does anything."""

import subprocess
import sys

READERS = (
    "summary",
    "comparison.voids",
    "interchange.files",
    "judging.gate",
    "judging.stored_runs",
    "reporting.console",
    "reporting.report",
)


def test_reading_a_run_does_not_load_scipy() -> None:
    """It takes a second, and only intervals and tests of samples need it."""
    program = "import sys; " + "; ".join(f"import specdeploy_client.{name}" for name in READERS)
    program += "; print([name for name in sys.modules if name.split('.')[0] == 'scipy'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

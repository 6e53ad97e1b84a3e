"""The one cause in a log of the Triton server. The lines are what version 2.51 prints."""

from pathlib import Path

import pytest

from specdeploy.serving.server_log import extract_cause, read_log_tail

NOISE = """\
W1129 16:27:52.090767 8541 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory"
E1129 16:27:52.090997 8541 server.cc:241] "CudaDriverHelper has not been initialized."
I1129 16:27:52.093035 8541 model_lifecycle.cc:472] "loading: llm:1"
"""
FAILED = r"""I1129 16:27:52.383011 8541 pb_stub.cc:366] "Failed to initialize Python stub: KeyError: 'target_folder'\n\nAt:\n  /m.py(3): deep\n"
E1129 16:27:52.488370 8541 backend_model.cc:692] "ERROR: Failed to create instance: KeyError: 'target_folder'\n\nAt:\n  /m.py(3): deep\n"
E1129 16:27:52.488481 8541 model_lifecycle.cc:642] "failed to load 'llm' version 1: Internal: KeyError: 'target_folder'\n\nAt:\n  /m.py(3): deep\n  /m.py(11): initialize\n"
I1129 16:27:52.488521 8541 model_lifecycle.cc:777] "failed to load 'llm'"
"""  # noqa: E501  (lines of a log)
TABLE = """\
+-------+---------+----------------------------------------------------------+
| llm   | 1       | UNAVAILABLE: Internal: ValueError: specdeploy: bad thing |
|       |         | second line                                              |
Error: Failed to initialize NVML
error: creating server: Internal - failed to load all models
"""
UNHEALTHY = (
    "E1129 16:27:52.488481 8541 model_lifecycle.cc:642] "
    "\"failed to load 'llm' version 1: Internal: Stub process 'llm_0_0' is not healthy.\""
)


def test_exception_of_a_model_with_its_innermost_frame() -> None:
    assert extract_cause(NOISE + FAILED + TABLE.replace("specdeploy: ", "")) == (
        "model llm: KeyError: 'target_folder' (at /m.py(3): deep)"
    )


def test_marked_message_stands_alone() -> None:
    marked = FAILED.replace(
        "KeyError: 'target_folder'", r"TritonModelException: specdeploy: engines/x: gone.\nBuild it"
    )

    assert extract_cause(NOISE + marked + TABLE) == "engines/x: gone.\nBuild it"


def test_marked_line_printed_by_the_stub() -> None:
    assert extract_cause(f"{NOISE}specdeploy: threads must be at least 1\n{FAILED}") == "threads must be at least 1"


def test_lines_of_a_script_that_are_marked_one_by_one_are_one_message() -> None:
    log = f"{NOISE}specdeploy: engines/x: was built with other versions:\nspecdeploy:   tensorrt  10.14  10.13\n"

    assert extract_cause(log + "bash: warning: setlocale\n") == (
        "engines/x: was built with other versions:\n  tensorrt  10.14  10.13"
    )


RULE = "-" * 74
NO_SLOTS = f"""\
{RULE}
There are not enough slots available in the system to satisfy the 4
slots that were requested by the application:

  /opt/specdeploy-repository/tritonserver.sh

Either request fewer procs for your application, or make more slots available.
{RULE}
"""
NOT_EXECUTED = f"""\
{RULE}
mpirun was unable to launch the specified application as it could not access
or execute an executable:

Executable: /opt/specdeploy-repository/tritonserver.sh
Node: host

while attempting to start process rank 0.
{RULE}
"""
KILLED = f"""\
{RULE}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{RULE}
{RULE}
mpirun noticed that process rank 1 with PID 0 on node host exited on signal 9 (Killed).
{RULE}
"""


NOT_INSTALLED = (
    "/usr/bin/python3: Error while finding module specification for 'specdeploy.serving.runtime_versions' "
    "(ModuleNotFoundError: No module named 'specdeploy')\n"
)


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("specdeploy: launch.sh: /srv/engines/x is missing: mount it here\n", "launch.sh: /srv/engines/x is missing"),
        (
            NOT_INSTALLED,
            "python3 -m pip install SOURCE_FOLDER",
        ),
        ("/usr/bin/python3: No module named specdeploy\n", "python3 -m pip install SOURCE_FOLDER"),
        ("/repo/big/launch.sh: line 12: python3: command not found\n", "line 12: python3: command not found"),
        ("/repo/big/launch.sh: line 9: /x: Permission denied\n", "/x: Permission denied"),
        (NO_SLOTS, "not enough slots available in the system to satisfy the 4 slots"),
        (NOT_EXECUTED, "could not access or execute an executable: Executable: /opt/specdeploy-repository"),
        (KILLED, "process rank 1 with PID 0 on node host exited on signal 9 (Killed)"),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: no room (kv.cpp:1)\n" + KILLED,
            "Assertion failed: no room",
        ),
        ("[TensorRT-LLM][INFO] fine\n" + NO_SLOTS + KILLED, "not enough slots"),
    ],
)
def test_what_scripts_and_launchers_print(log: str, cause: str) -> None:
    assert cause in str(extract_cause(NOISE + log))


def test_traceback_printed_by_a_library() -> None:
    log = f'{NOISE}Traceback (most recent call last):\n  File "x.py", line 1\n    boom()\nOSError: disk full\nmore\n'

    assert extract_cause(log) == "OSError: disk full"


def test_port_taken_between_check_and_start() -> None:
    log = f"{NOISE}error: failed to start GRPC service: Unavailable - Socket '127.0.0.1:8001' already in use\n"

    assert extract_cause(log + "error: creating server: Internal - failed to load all models\n") == (
        "error: failed to start GRPC service: Unavailable - Socket '127.0.0.1:8001' already in use"
    )


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        (
            UNHEALTHY,
            "out of memory",
        ),
        ("stub: error while loading shared libraries: libpython3.11.so.1.0: cannot open", "install the shared library"),
    ],
)
def test_messages_of_others_get_a_hint(line: str, hint: str) -> None:
    assert hint in str(extract_cause(NOISE + line))


def test_healthy_log_has_no_cause() -> None:
    assert extract_cause(NOISE) is None
    assert extract_cause("") is None


def test_cause_stays_short() -> None:
    cause = str(
        extract_cause(
            "E1129 16:27:52.488481 8541 a.cc:1] \"failed to load 'llm' version 1: Internal: " + "x\\n" * 99 + '"'
        )
    )

    assert len(cause.splitlines()) <= 13


def test_tail_of_a_large_or_missing_log(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"x" * 600_000 + b"\xff\nend")

    assert read_log_tail(path).endswith("\nend")
    assert len(read_log_tail(path)) < 600_000
    assert read_log_tail(tmp_path / "none") == ""

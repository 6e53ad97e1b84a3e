"""Logs as the programs write them -> cause, remedy and the lines that show it."""

import signal

import pytest

from specdeploy.builders.step_failures import KNOWN_CAUSES, MAX_LINES, explain_failure

TRACEBACK = """\
[TensorRT-LLM] TensorRT-LLM version: 1.2.1
[11/29/2026-20:01:11] [TRT-LLM] [I] Set nccl_plugin to auto.
Traceback (most recent call last):
  File "/usr/local/bin/trtllm-build", line 8, in <module>
    sys.exit(main())  # tokens_per_block must not match here, nor NVFP4 not supported
             ^^^^^^
  File "/usr/local/lib/python3.12/dist-packages/tensorrt_llm/commands/build.py", line 627, in main
    parallel_build(model_config, ckpt_dir, build_config, args.output_dir,
"""

# name of the row -> (log, exit code, part of the cause, part of the remedy)
LOGS: dict[str, tuple[str, int, str, str]] = {
    "disk": (
        TRACEBACK
        + "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, "
        'message: "No space left on device" })',
        1,
        "the disk is full",
        "Free space",
    ),
    "driver": (
        TRACEBACK + "RuntimeError: The NVIDIA driver on your system is too old (found version 12020).",
        1,
        "driver is too old",
        "Update the driver",
    ),
    "no gpu": (TRACEBACK + "RuntimeError: No CUDA GPUs are available", 1, "no GPU is visible", "--gpus all"),
    "gpu memory": (
        "[11/29/2026-20:05:40] [TRT] [E] [virtualMemoryBuffer.cpp::resizePhysical::154] Error Code 2: OutOfMemory "
        "(Requested size was 8589934592 bytes.)\n"
        + TRACEBACK
        + "AssertionError: Engine building failed, please check error log.",
        1,
        "the GPU ran out of memory",
        "tensorrt_llm.max_num_tokens",
    ),
    "host memory": (
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n",
        -6,
        "ran out of main memory",
        "more memory",
    ),
    "engine version": (
        (
            "[TRT] [E] IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion "
            "stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current Version: 240, "
            "Serialized Engine Version: 239)"
        ),
        1,
        "made by another TensorRT",
        "the same container version",
    ),
    "engine gpu": (
        (
            "[TRT] [E] IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is "
            "generated on an incompatible device, expecting compute 9.0 got compute 8.0, please rebuild.)"
        ),
        1,
        "another GPU architecture",
        "tensorrt_llm.gpu",
    ),
    "context logits": (
        TRACEBACK
        + "RuntimeError: Gather context logits is not support with draft len > 0. If want to get the accepted "
        "tokens' logits from target model, please just enable gather_generation_logits",
        1,
        "--gather_context_logits cannot be combined",
        "without context logits",
    ),
    "tokens per block": (
        TRACEBACK + "AssertionError: tokens_per_block must be a power of two, got 48",
        1,
        "block size of the key/value cache is refused",
        "--tokens_per_block at its default",
    ),
    "missing tensor": (
        TRACEBACK + "RuntimeError: Required but not provided tensors:{'eagle_nets.0.fc.bias', 'eagle_nets.1.fc.bias'}",
        1,
        "the checkpoint has no tensor {'eagle_nets.0.fc.bias'",
        "complete",
    ),
    "quantisation": (
        TRACEBACK + "ValueError: Unsupported quantization algo: NVFP4",
        1,
        "the quantisation of the checkpoint is not supported",
        "Blackwell",
    ),
    "architecture": (
        TRACEBACK + "AssertionError: Unsupported model architecture: Qwen9ForCausalLM",
        1,
        "no engine for the architecture Qwen9ForCausalLM",
        "trtllm_llmapi",
    ),
    "tensor parallel": (
        TRACEBACK + '  File "/app/examples/redrafter/convert_checkpoint.py", line 152, in hf_llama_model\n'
        "    assert (k_weight.shape[0] % (mapping.tp_size * head_size)) == 0\n"
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "AssertionError",
        1,
        "tensor_parallel does not divide",
        "tensorrt_llm.tensor_parallel",
    ),
    "argument": (
        (
            "usage: trtllm-build [-h] [--checkpoint_dir CHECKPOINT_DIR]\n"
            "trtllm-build: error: unrecognized arguments: --auto_parallel 2"
        ),
        2,
        "does not know what it was given: unrecognized arguments: --auto_parallel 2",
        "tensorrt_llm.version",
    ),
    "module": (
        TRACEBACK + "ModuleNotFoundError: No module named 'tensorrt_llm'",
        1,
        "a Python package is missing or broken: tensorrt_llm",
        "vendor's container",
    ),
    "hub access": (
        TRACEBACK + "OSError: You are trying to access a gated repo.\nMake sure to have access to it at "
        "https://huggingface.co/meta-llama/Llama-3.1-8B-Instruct.\n403 Client Error.",
        1,
        "the model hub refused access",
        "local folder",
    ),
    "not found": ("/bin/sh: 1: trtllm-build: not found", 127, "the program trtllm-build is not there", "container"),
    "permission": (
        TRACEBACK + "PermissionError: [Errno 13] Permission denied: '/models/llama/model.safetensors'",
        1,
        "may not be read or written",
        "readable",
    ),
}


def test_every_row_has_a_log() -> None:
    assert set(LOGS) == {known.name for known in KNOWN_CAUSES}


@pytest.mark.parametrize("name", LOGS)
def test_known_cause(name: str) -> None:
    log, exit_code, cause, remedy = LOGS[name]

    failure = explain_failure(log, exit_code)

    assert cause in failure.cause
    assert remedy in failure.remedy
    assert failure.lines
    assert not failure.cause.endswith(".")
    assert not failure.remedy.endswith(".")


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "the GPU ran out of memory"),
        ("[TRT] [E] Error Code 1: Cuda Driver (Error: resizePhysical: out of memory)", "the GPU ran out of memory"),
        ("KeyError: 'fc.bias'", "the checkpoint has no tensor fc.bias"),
        (
            "safetensors_rust.SafetensorError: File does not contain tensor model.norm.weight",
            "the checkpoint has no tensor model.norm.weight",
        ),
        (
            "python3: can't open file '/app/examples/llama/convert_checkpoint.py': [Errno 2]",
            "the program /app/examples",
        ),
        ("RuntimeError: CUDA driver version is insufficient for CUDA runtime version", "the CUDA driver is too old"),
        ("AssertionError: num_attention_heads must be divisible by tp_size", "tensor_parallel does not divide"),
        ("trtllm-build: error: argument --kv_cache_type: invalid choice: 'x'", "the command does not know"),
        ("OSError: [Errno 28] No space left on device: '/engines/x'", "the disk is full"),
        ("OSError: [Errno 122] Disk quota exceeded", "the disk is full"),
    ],
)
def test_other_words_for_known_causes(log: str, cause: str) -> None:
    assert explain_failure(log, 1).cause.startswith(cause)


@pytest.mark.parametrize(
    ("exit_code", "cause"),
    [
        (-signal.SIGKILL, "it was killed, as the system does when the machine ran out of main memory"),
        (128 + signal.SIGKILL, "it was killed, as the system does when the machine ran out of main memory"),
        (-signal.SIGBUS, "it was killed by SIGBUS, as happens when shared memory is too small"),
        (-signal.SIGXFSZ, "the disk is full"),
        (-signal.SIGTERM, "it was ended from outside (SIGTERM)"),
        (-signal.SIGINT, "it was interrupted"),
        (-signal.SIGSEGV, "it was killed by SIGSEGV"),
        (-200, "it was killed by signal 200"),
        (126, "the program is not there or may not be run"),
        (3, "it failed without an error line"),
    ],
)
def test_exit_code_explains_a_log_without_an_error(exit_code: int, cause: str) -> None:
    assert (
        explain_failure("Loading checkpoint shards:  50%\rLoading checkpoint shards:  75%\r", exit_code).cause == cause
    )


def test_missing_key_of_a_config_is_no_missing_tensor() -> None:
    assert explain_failure(TRACEBACK + "KeyError: 'hidden_size'", 1).cause == "KeyError: 'hidden_size'"


def test_empty_log() -> None:
    failure = explain_failure("", 1)

    assert (failure.cause, failure.lines) == ("it failed without an error line", ())


def test_last_line_of_a_log_is_shown_but_is_no_cause() -> None:
    failure = explain_failure("[TensorRT-LLM] TensorRT-LLM version: 1.2.1\n0.01s\n", 1)

    assert failure.cause == "it failed without an error line"
    assert failure.lines == ("[TensorRT-LLM] TensorRT-LLM version: 1.2.1", "0.01s")


def test_log_wins_over_the_signal_and_the_disk() -> None:
    log = "RuntimeError: CUDA out of memory."

    assert explain_failure(log, -signal.SIGKILL, free_bytes=0).cause == "the GPU ran out of memory"


@pytest.mark.parametrize(
    "line",
    [
        "[11/29/2026-20:01:11] [TRT-LLM] [W] No CUDA GPUs are available for the profiler",
        "[TensorRT-LLM][WARNING] permission denied: /root/.cache",
        "[11/29/2026-20:01:11] [TRT-LLM] [I] tokens_per_block must be 32",
        "WARNING: quantization mode NVFP4 is not supported",
        "/usr/lib/python3/dist-packages/x.py:3: UserWarning: CUDA out of memory is near",
        "INFO no space left on device was seen before",
    ],
)
def test_lines_that_are_no_errors_explain_nothing(line: str) -> None:
    assert explain_failure(line, 1).cause == "it failed without an error line"
    assert explain_failure(f"{line}\nRuntimeError: odd", 1).cause == "RuntimeError: odd"
    assert explain_failure(line, -signal.SIGKILL).cause.startswith("it was killed, as the system does when")


def test_plain_lines_are_asked_only_where_nothing_else_is_known() -> None:
    log = "cp: writing: Permission denied\n"

    assert explain_failure(log, 1).cause == "a file may not be read or written"
    assert explain_failure(log + "RuntimeError: odd", 1).cause == "RuntimeError: odd"
    assert explain_failure(log, -signal.SIGKILL).cause.startswith("it was killed")


def test_full_disk_wins_over_an_unknown_error() -> None:
    assert explain_failure("RuntimeError: something", 1, free_bytes=1000).cause == "the disk is full"
    assert explain_failure("RuntimeError: something", 1, free_bytes=1 << 40).cause == "RuntimeError: something"


def test_newest_error_decides() -> None:
    log = TRACEBACK + "KeyError: 'fc.bias'\n\nDuring handling of the above exception:\n" + TRACEBACK

    failure = explain_failure(log + "RuntimeError: No CUDA GPUs are available", 1)

    assert failure.cause == "no GPU is visible to the command"
    assert failure.lines == ("KeyError: 'fc.bias'", "RuntimeError: No CUDA GPUs are available")


def test_worker_error_is_not_hidden_by_the_summary_of_the_parent() -> None:
    log = TRACEBACK + "ValueError: rank 1 is odd\n" + TRACEBACK
    failure = explain_failure(log + "AssertionError: Engine building failed, please check error log.", 1)

    assert failure.cause == "ValueError: rank 1 is odd"
    assert failure.lines == ("ValueError: rank 1 is odd",)


def test_lines_are_few_and_not_repeated() -> None:
    log = "\n".join(f"[TensorRT-LLM][ERROR] error {number // 2}" for number in range(100))

    lines = explain_failure(log, 1).lines

    assert lines == tuple(f"[TensorRT-LLM][ERROR] error {number}" for number in range(50 - MAX_LINES, 50))

"""What the log of a failed build command says: the cause in one line, what to do about it, the lines that show it.

The causes are a table, most specific first. Patterns without a source are the well-known texts of the operating
system, Python, PyTorch and the CUDA driver; those of TensorRT-LLM cite the file they were read in.
"""

import re
import signal
from dataclasses import dataclass

MAX_LINES = 6  # shown of a log
MAX_LINE_LENGTH = 300
# A step with this little space left on its disk failed for want of it, whatever the log still had room to say.
FULL_DISK_BYTES = 64 << 20

_DISK_CAUSE = "the disk is full"
_DISK_REMEDY = "Free space below the engines folder (old builds may be deleted) or move it to a larger disk"
_HOST_MEMORY_CAUSE = "the machine ran out of main memory"
_HOST_MEMORY_REMEDY = (
    "Use a machine with more memory, or end what else uses it; converting holds the whole checkpoint in memory, and "
    "every worker holds its own copy"
)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a command failed. `cause` and `remedy` have no full stop; `lines` are quoted from the log, oldest first."""

    cause: str
    remedy: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KnownCause:
    """One row: `pattern` is searched line by line; `{0}` in `cause` is its first group that took part."""

    name: str
    pattern: re.Pattern[str]
    cause: str
    remedy: str


def _known(name: str, pattern: str, cause: str, remedy: str) -> KnownCause:
    return KnownCause(name, re.compile(pattern, re.IGNORECASE | re.MULTILINE), cause, remedy)


KNOWN_CAUSES: tuple[KnownCause, ...] = (
    _known(
        "disk", r"no space left on device|\[errno 28\]|disk quota exceeded|file too large", _DISK_CAUSE, _DISK_REMEDY
    ),
    _known(
        "driver",
        r"CUDA driver version is insufficient|NVIDIA driver on your system is too old|"
        r"forward compatibility was attempted on non supported HW",
        "the CUDA driver is too old for this TensorRT-LLM",
        "Update the driver to the one the container names, or use a container of an older TensorRT-LLM",
    ),
    _known(
        "no gpu",
        r"no CUDA GPUs are available|no CUDA-capable device|found no NVIDIA driver|libcuda\.so\.1: cannot open",
        "no GPU is visible to the command",
        "Run the build on the GPU machine; in a container pass --gpus all",
    ),
    _known(
        "gpu memory",
        r"CUDA out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|torch\.(?:cuda\.)?OutOfMemoryError|"
        r"Cuda (?:Driver|Runtime) \(.*out of memory|amount of GPU memory .* could not be allocated|"
        r"OutOfMemory \(.*requested",
        "the GPU ran out of memory",
        "End what else runs on the GPU, or lower tensorrt_llm.max_num_tokens or serving.max_rows, or raise "
        "tensorrt_llm.tensor_parallel",
    ),
    _known(
        "host memory",
        r"^MemoryError|std::bad_alloc|DefaultCPUAllocator: (?:can't|not enough)|_ArrayMemoryError|"
        r"cannot allocate memory",
        _HOST_MEMORY_CAUSE,
        _HOST_MEMORY_REMEDY,
    ),
    _known(
        "engine version",
        r"kSERIALIZATION_VERSION|version tag does not match|"
        r"engine plan file is not compatible with this version of TensorRT",
        "the engine was made by another TensorRT than the one that reads it",
        "Build and serve inside one and the same container version",
    ),
    _known(
        "engine gpu",
        r"engine plan file is generated on an incompatible device",
        "the engine was made for another GPU architecture",
        "Build on the kind of GPU that serves, and name it in tensorrt_llm.gpu",
    ),
    # TensorRT-LLM tensorrt_llm/commands/build.py@008b2b8d23af95e4e19fa6f354f9c5f6349b2bfc
    _known(
        "context logits",
        r"gather context logits is not support",
        "--gather_context_logits cannot be combined with drafting",
        "Build the speculative engine without context logits",
    ),
    _known(
        "tokens per block",
        r"^.*(?:error|assert|must|invalid).*tokens?_?per_?block.*$|^.*tokens?_?per_?block.*(?:must|invalid|unsupported).*$",
        "the engine's block size of the key/value cache is refused",
        "Leave --tokens_per_block at its default of this TensorRT-LLM version",
    ),
    # `Required but not provided tensors`: TensorRT-LLM tensorrt_llm/models/modeling_utils.py
    # @01ea6d79d454bb3ab10c7510a6f706ba039090c2
    _known(
        "missing tensor",
        r"^KeyError: ['\"]([\w.]*\.(?:weight|bias|\w*scale\w*))['\"]|file does not contain tensor (\S+)|"
        r"required but not provided tensors: ?(\{.{0,200})",
        "the checkpoint has no tensor {0}",
        "Check that the checkpoint is complete and that it is of the architecture and drafting method the config names",
    ),
    _known(
        "quantisation",
        r"unsupported quant\w*|quant\w* (?:algo\w*|mode|method|format) .{0,80}not supported|"
        r"(?:NVFP4|FP4).{0,80}(?:not supported|requires|only supported)|unknown quantization",
        "the quantisation of the checkpoint is not supported here",
        "Use a bf16/fp16 or FP8 checkpoint; FP4 needs a Blackwell GPU",
    ),
    # TensorRT-LLM tensorrt_llm/commands/build.py@008b2b8d23af95e4e19fa6f354f9c5f6349b2bfc
    _known(
        "architecture",
        r"unsupported model architecture: (\S+)",
        "TensorRT-LLM builds no engine for the architecture {0}",
        "Use the lane trtllm_llmapi or a target of a supported family",
    ),
    # `% (mapping.tp_size * head_size)`: TensorRT-LLM examples/redrafter/convert_checkpoint.py
    # @0e8b9484c7e4866a4091e5939c7e14ce53dffa88
    _known(
        "tensor parallel",
        r"must be divisible by (?:tp|world|tensor)|% \(?(?:self\.|mapping\.|args\.)*tp_size",
        "tensor_parallel does not divide the attention heads of the model",
        "Choose a tensorrt_llm.tensor_parallel that divides the number of attention heads",
    ),
    _known(
        "argument",
        r"error: (unrecognized arguments: .*|argument \S+: .*|the following arguments are required: .*)$",
        "the command does not know what it was given: {0}",
        "The installed TensorRT-LLM differs from tensorrt_llm.version: install that version, or name the installed one",
    ),
    _known(
        "module",
        r"^ModuleNotFoundError: No module named ['\"]([\w.]+)['\"]|^ImportError: (.*)$",
        "a Python package is missing or broken: {0}",
        "Run the build inside the vendor's container of tensorrt_llm.version, or install the package there",
    ),
    _known(
        "hub access",
        r"gated repo|GatedRepoError|403 Client Error|401 Client Error|RepositoryNotFoundError|LocalEntryNotFoundError|"
        r"offline mode is enabled",
        "the model hub refused access or cannot be reached",
        "Download the checkpoint first with an account that may read it, and name the local folder in the config",
    ),
    _known(
        "not found",
        r"([\w./-]+): (?:command )?not found|can't open file ['\"](.+?)['\"]",
        "the program {0} is not there",
        "Run the build inside the vendor's container of tensorrt_llm.version, which carries it",
    ),
    _known(
        "permission",
        r"^PermissionError: .*?(['\"].+['\"])|permission denied",
        "a file may not be read or written",
        "Make the checkpoint readable and the engines folder writable for this user",
    ),
)

_SIGNALS: dict[int, tuple[str, str]] = {
    signal.SIGKILL: (f"it was killed, as the system does when {_HOST_MEMORY_CAUSE}", _HOST_MEMORY_REMEDY),
    signal.SIGBUS: (
        "it was killed by SIGBUS, as happens when shared memory is too small",
        "Give the container more shared memory (docker run --shm-size=16g or --ipc=host)",
    ),
    signal.SIGXFSZ: (_DISK_CAUSE, _DISK_REMEDY),
    signal.SIGTERM: ("it was ended from outside (SIGTERM)", "Run the build again; finished steps are kept"),
    signal.SIGINT: ("it was interrupted", "Run the build again; finished steps are kept"),
}
_FAILED_WITHOUT_A_WORD = "it failed without an error line"
_READ_THE_LOG = "Read the log"

_EXCEPTION = re.compile(r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout)|AssertionError)\b(?::.*)?$")
_MARKED = re.compile(r"\[(?:E|ERROR|FATAL|error)\]|^\w[\w.-]*: error: |\bFATAL\b|\bterminate called\b|^\s*what\(\):")
_ANY_ERROR = re.compile(r"\berror\b", re.IGNORECASE)
# Lines that say themselves that they are no errors, in the ways of Python's and TensorRT-LLM's loggers.
_QUIET = re.compile(
    r"\[(?:W|I|V|D|WARN(?:ING)?|INFO|VERBOSE|DEBUG|TRACE)\]|^\W*(?:WARN(?:ING)?|INFO|DEBUG)\b|\w+Warning:"
)
# Says only that another message said why: tensorrt_llm/commands/build.py@008b2b8d23af95e4e19fa6f354f9c5f6349b2bfc
_EMPTY_WORDS = "please check error log"


def explain_failure(log_tail: str, exit_code: int, *, free_bytes: int | None = None) -> Failure:
    """Explain a failed command from the end of its log and its exit code (negative = killed by that signal).

    `free_bytes`: what the disk of the step has left, where known; a log that could not be written any more is then
    still explained. A pattern of the table wins over the signal where an error line has it, since the log knows more
    than the exit code.
    """
    lines = _without_frames(_lines_of(log_tail))
    errors = _error_lines(lines)
    shown = tuple(line[:MAX_LINE_LENGTH] for line in (errors or _distinct(lines[-MAX_LINES:]))[-MAX_LINES:])
    number = -exit_code if exit_code < 0 else exit_code - 128  # a shell in between reports 128 + signal
    # The newest error decides. Other lines are asked only where there is none and no signal says what happened.
    others = (
        [] if errors or exit_code < 0 or number in _SIGNALS else [line for line in lines if not _QUIET.search(line)]
    )
    for line in (*reversed(errors), *reversed(others)):
        for known in KNOWN_CAUSES:
            if match := known.pattern.search(line):
                found = next((group for group in match.groups() if group), "")
                return Failure(known.cause.format(found.strip()[:MAX_LINE_LENGTH]), known.remedy, shown)
    if free_bytes is not None and free_bytes < FULL_DISK_BYTES:
        return Failure(_DISK_CAUSE, _DISK_REMEDY, shown)
    if exit_code in (127, 126):
        return Failure("the program is not there or may not be run", _READ_THE_LOG, shown)
    if number in _SIGNALS:
        return Failure(*_SIGNALS[number], shown)
    if exit_code < 0:
        return Failure(f"it was killed by {_signal_name(number)}", _READ_THE_LOG, shown)
    # The last line of a log is no cause: the banner of the program may be all that was written.
    return Failure(shown[-1] if errors else _FAILED_WITHOUT_A_WORD, _READ_THE_LOG, shown)


def _error_lines(lines: list[str]) -> list[str]:
    """The lines that say what went wrong, without repeats, oldest first.

    Heads of Python exceptions and lines marked as errors (C++ logger, argparse); else lines with the word error; none
    where nothing of the kind was written.
    """
    loud = [line for line in lines if not _QUIET.search(line)]
    marked = [line for line in loud if _EXCEPTION.match(line) or _MARKED.search(line) or _is_assertion(line)]
    telling = [line for line in marked if _EMPTY_WORDS not in line]
    return _distinct(telling or marked or [line for line in loud if _ANY_ERROR.search(line)])


def _is_assertion(line: str) -> bool:
    """The source of a failed assertion, which often has no words of its own."""
    return line.startswith(" ") and line.strip().startswith("assert ")


def _distinct(lines: list[str]) -> list[str]:
    """Without repeats, each line where it was last."""
    return list(reversed(dict.fromkeys(line.strip() for line in reversed(lines))))


def _without_frames(lines: list[str]) -> list[str]:
    """Without the frames of tracebacks: source text may hold any word. A failed assertion is often all there is to
    read, so its source stays."""
    kept = []
    is_in_traceback = False
    for line in lines:
        if line.startswith("Traceback (most recent call last)"):
            is_in_traceback = True
        elif not line.startswith(" "):
            is_in_traceback = False
        if not is_in_traceback or line.strip().startswith("assert "):
            kept.append(line)
    return kept


def _lines_of(log_tail: str) -> list[str]:
    """Lines that are not empty; a progress bar's carriage returns end a line too."""
    return [line.rstrip() for line in re.split(r"[\r\n]+", log_tail) if line.strip()]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

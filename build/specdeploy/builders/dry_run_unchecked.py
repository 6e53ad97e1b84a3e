"""What a dry run leaves open: what stops its script, what no machine without the GPUs can know, what to read first."""

from collections.abc import Iterable

from specdeploy.builders.dry_run_script import HandStep, find_placeholders
from specdeploy.builders.trtllm_snapshot import Snapshot
from specdeploy.config.load import LoadedDeployment
from specdeploy.contract import Lane, Method
from specdeploy.trtllm.facts import build_flags_notes, llm_args_column, speculative_column
from specdeploy.trtllm.probe_record import ProbeRecord
from specdeploy.trtllm.versions import parse_version


def find_blocker(script: str, snapshots: Iterable[Snapshot], steps: Iterable[HandStep]) -> str | None:
    """Why `script` would stop after hours of downloads, None when every argument is known."""
    if not (words := find_placeholders(steps)):
        return None
    missing = [f"{one.role} {one.source.checkpoint}" for one in snapshots if one.folder is None]
    return (
        f"{script} cannot run as it stands: {' and '.join(words)} in it, --use_fp8 and --gemm_plugin follow "
        f"from the checkpoint, and {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on this machine. "
        "Fetch what is missing and run the dry run again"
    )


def rank_sentence(sentence: str) -> int:
    """What to read first: checkpoints that are missing, what follows from that, and what is true on every machine."""
    first = ("target ", "draft ", "memory: ", "repository: ", "the pair: ", "pair: ")
    last = ("this machine could not build it: ", "no command was run: ")
    return next((number for number, start in enumerate((*first, "", *last)) if start and sentence.startswith(start)), 6)


def list_always_unchecked(loaded: LoadedDeployment, version: str, probe: ProbeRecord | None) -> list[str]:
    """What no dry run can know, whatever is on this machine."""
    if loaded.config.lane is Lane.TRTLLM_ENGINE:
        unread = build_flags_notes(parse_version(version))
        known = f"is one that TensorRT-LLM {version} has" if not unread else f"was checked, but {'; '.join(unread)}"
        sentences = [
            f"No engine was compiled: every flag of trtllm-build {known}.",
            "The flags of convert scripts were read at one commit each, and may differ in this version.",
            "Sizes of engines are those of their weights; what the compiler adds or leaves out is not known.",
        ]
    else:
        probed = f"the recorded probe of TensorRT-LLM {version}"
        source = _where_arguments_were_read(version) if probe is None else probed
        sentences = [f"No LLM object was made: the arguments were compared with {source}."]
    sentences += [
        "Memory is arithmetic over shapes; activations and the runtime's own share are estimates.",
        "Whether drafting is faster for this traffic: only a measurement on the GPUs of the config says so.",
    ]
    if loaded.config.speculation.method is Method.MTP:
        sentences.append("How many tokens the MTP module gets accepted at this depth is not in any file.")
    return sentences


def _where_arguments_were_read(version: str) -> str:
    """What the arguments of `version` were compared with: its own sources, or what stands in for them."""
    columns = (llm_args_column(parse_version(version)), speculative_column(parse_version(version)))
    if all(column.is_exact for column in columns):
        return f"published sources of TensorRT-LLM {version}"
    sources = dict.fromkeys(source for column in columns for source in column.sources)
    notes = "; ".join(dict.fromkeys(column.note for column in columns if column.note))
    if tuple(sources) == (version,):
        return f"those parts of TensorRT-LLM {version} that were read ({notes})"
    return f"what was read of {' and '.join(sources)}, in place of TensorRT-LLM {version} ({notes})"

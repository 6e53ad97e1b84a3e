"""What an installed TensorRT-LLM answered about itself, where the facts of its version are silent.

engines/probes/tensorrt_llm-<version>.json   ProbeRecord, one per version, replaced by every probe
"""

from pathlib import Path

from pydantic import ValidationError

from specdeploy.contract import ContractModel
from specdeploy.errors import BuildError

PROBE_FOLDER = "probes"
PROBE_COMMAND = "python -m specdeploy.builders.trtllm_probe"


class ProbeRecord(ContractModel):
    """Answers of the package of exactly `version`.

    `spellings` the drafting method (value of `Method`) -> the `decoding_type` that its classes accept, None = none of
    the candidates. `speculative_fields` that decoding_type -> every name its class accepts in input, aliases included.
    `llm_args_fields` and `kv_cache_fields` likewise. `how` says in words how the answers were got.
    """

    version: str
    spellings: dict[str, str | None]
    speculative_fields: dict[str, tuple[str, ...]]
    llm_args_fields: tuple[str, ...]
    kv_cache_fields: tuple[str, ...]
    how: str
    created_at: str


def probe_path(engines_root: Path, version: str) -> Path:
    """Where the record of `version` lies."""
    return engines_root / PROBE_FOLDER / f"tensorrt_llm-{version}.json"


def load_probe(path: Path) -> ProbeRecord:
    """The record in `path`; raises `BuildError` when it is missing or broken."""
    remedy = f"Run `{PROBE_COMMAND}` where TensorRT-LLM is installed (its container), then repeat"
    try:
        return ProbeRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BuildError(f"{path}: cannot be read ({error.strerror or error}). {remedy}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file as a whole"
        raise BuildError(f"{path}: {place}: {first['msg']}. {remedy}") from error

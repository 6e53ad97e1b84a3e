"""Ask the installed TensorRT-LLM what the facts of its version leave open, and write its answers down.

    python -m specdeploy.builders.trtllm_probe <engines root>

Nothing is loaded: the classes of the LLM arguments are imported and handed candidates. Two kinds of package exist. With
a lookup table (`DecodingBaseConfig.from_dict`, up to 1.2.1) an unknown `decoding_type` is a plain ValueError; with a
discriminated union (1.3 on) every class carries its spelling as the default of its field `decoding_type`.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ValidationError

from specdeploy.contract import Method
from specdeploy.errors import BuildError, SpecDeployError
from specdeploy.manifest import write_json_atomically
from specdeploy.trtllm.class_arguments import class_arguments
from specdeploy.trtllm.decoding import SPELLINGS
from specdeploy.trtllm.probe_record import ProbeRecord, probe_path

ARGUMENTS_MODULE = "tensorrt_llm.llmapi.llm_args"
DISTRIBUTION = "tensorrt_llm"
_TABLE = "handed each spelling to DecodingBaseConfig.from_dict"
_UNION = "read the default of decoding_type on each class"
# Enough for the class's own validators; the folder is never opened. Names as 1.0.0 to main accept them.
_SAMPLE_FIELDS: Mapping[Method, Mapping[str, object]] = {
    Method.EAGLE3: {"max_draft_len": 1, "speculative_model_dir": "draft"},
    Method.DRAFT_MODEL: {"max_draft_len": 1, "speculative_model_dir": "draft"},
    Method.NGRAM: {"max_draft_len": 1, "max_matching_ngram_size": 1},
    Method.MTP: {"num_nextn_predict_layers": 1},
}


def installed_version() -> str | None:
    """The version of the installed package, None when there is none; imports nothing."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def probe_installed(engines_root: Path, report: Callable[[str], None]) -> ProbeRecord:
    """Probe the installed package and write `engines_root`/probes/tensorrt_llm-<version>.json.

    Raises `BuildError` when the package is not installed, cannot be imported, or has not the classes that are probed.
    """
    version = installed_version()
    if version is None:
        raise BuildError("TensorRT-LLM is not installed here. Run the probe in the container that will serve")
    module = _import_arguments()
    base = getattr(module, "DecodingBaseConfig", None)
    if base is None:
        raise BuildError(f"{ARGUMENTS_MODULE} of TensorRT-LLM {version} has no DecodingBaseConfig: it cannot be probed")
    has_table = hasattr(base, "from_dict")
    classes = dict(_table_classes(base) if has_table else _union_classes(module, base))
    record = ProbeRecord(
        version=version,
        spellings={method.value: _accepted(method, classes) for method in SPELLINGS},
        speculative_fields={
            name: tuple(field for field in accepted_names(model) if field != "decoding_type")
            for name, model in classes.items()
        },
        llm_args_fields=accepted_names(_class_of(module, version, "TorchLlmArgs", "LlmArgs")),
        kv_cache_fields=accepted_names(_class_of(module, version, "KvCacheConfig")),
        how=_TABLE if has_table else _UNION,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    path = probe_path(engines_root, version)
    write_json_atomically(path, record)
    for method, spelled in record.spellings.items():
        report(f"{method}: {spelled or 'no spelling accepted'}")
    report(f"TensorRT-LLM {version} probed ({record.how}): {path}")
    return record


def validate_with_classes(arguments: Mapping[str, object]) -> list[str]:
    """What the installed package's own argument classes refuse in `arguments`; no model is loaded.

    Raises `BuildError` when the package cannot be imported: ask `installed_version` first.
    """
    module = _import_arguments()
    model = _class_of(module, installed_version() or "of unknown version", "TorchLlmArgs", "LlmArgs")
    try:
        model(**class_arguments(arguments, module))
    except ValidationError as error:
        return [f"{'.'.join(map(str, entry['loc'])) or error.title}: {entry['msg']}" for entry in error.errors()]
    except Exception as error:  # whatever the vendor's validators raise is the answer
        return [f"{type(error).__name__}: {error}"]
    return []


def accepted_names(model: type[BaseModel]) -> tuple[str, ...]:
    """Every name that `model` accepts in input: its fields, their aliases and alternatives."""
    names: list[str] = []
    for name, info in model.model_fields.items():
        alias = info.validation_alias if info.validation_alias is not None else info.alias
        if alias is None or model.model_config.get("populate_by_name") or model.model_config.get("validate_by_name"):
            names.append(name)
        if isinstance(alias, AliasChoices):
            names += [choice for choice in alias.choices if isinstance(choice, str)]
        elif isinstance(alias, str):
            names.append(alias)
    return tuple(dict.fromkeys(names))


def _import_arguments() -> Any:
    try:
        return importlib.import_module(ARGUMENTS_MODULE)
    except (ImportError, OSError, RuntimeError) as error:  # its libraries are loaded at import: a driver may be missing
        raise BuildError(
            f"TensorRT-LLM cannot be imported ({error}). Run this in its container, on a machine with an NVIDIA driver"
        ) from error


def _class_of(module: Any, version: str, *names: str) -> type[BaseModel]:
    for name in names:
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, BaseModel):
            return found
    raise BuildError(f"{ARGUMENTS_MODULE} of TensorRT-LLM {version} has no {' or '.join(names)}: it cannot be probed")


def _accepted(method: Method, classes: Mapping[str, type[BaseModel]]) -> str | None:
    return next((spelled for spelled in SPELLINGS[method] if spelled in classes), None)


def _table_classes(base: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Accepted spelling -> class, as the lookup table answers."""
    for method, spellings in SPELLINGS.items():
        for spelled in spellings:
            model = _class_from_table(base, {"decoding_type": spelled, **_SAMPLE_FIELDS[method]})
            if model is not None:
                yield spelled, model


def _class_from_table(base: Any, sample: dict[str, object]) -> type[BaseModel] | None:
    """The class the table gives for `sample`. A ValidationError comes from that class, any other ValueError from the
    table itself: it does not know the spelling."""
    try:
        return type(base.from_dict(sample))
    except ValidationError as error:
        return next((model for model in _subclasses(base) if model.__name__ == error.title), None)
    except ValueError:
        return None
    except Exception as error:
        spelled = sample["decoding_type"]
        raise BuildError(
            f"TensorRT-LLM failed on decoding_type {spelled} ({type(error).__name__}: {error}): it cannot be probed"
        ) from error


def _union_classes(module: Any, base: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    """Spelling -> class, from the literal default of `decoding_type`."""
    for model in _subclasses(base):
        info = model.model_fields.get("decoding_type")
        if info is not None and isinstance(info.default, str) and getattr(module, model.__name__, None) is model:
            yield info.default, model


def _subclasses(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for model in base.__subclasses__():
        yield model
        yield from _subclasses(model)


def main(argv: Sequence[str] | None = None) -> int:
    """Probe and report; 0 when the record was written, 1 when it could not be."""
    parser = argparse.ArgumentParser(prog="python -m specdeploy.builders.trtllm_probe", description=__doc__)
    parser.add_argument("engines_root", type=Path, nargs="?", default=Path("engines"))
    options = parser.parse_args(argv)
    try:
        probe_installed(options.engines_root, lambda line: print(line))  # noqa: T201 - the output of this command
    except SpecDeployError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

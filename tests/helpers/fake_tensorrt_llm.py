"""A package `tensorrt_llm` with the argument classes of one version, generated from the facts, strict like the real.

It refuses unknown keys, wrong spellings, missing fields and schedules of the other meaning. Up to 1.2 `decoding_type`
is looked up in a table by `DecodingBaseConfig.from_dict` and is no field of the classes; from 1.3 on it is the
discriminator of a union. There is no LLM class in it.

Which entries of the facts a version gets is this file's own table: were it the product's choice, a version that the
product reads in the wrong column would look right.
"""

import contextlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdeploy.trtllm.decoding import SPELLINGS
from specdeploy.trtllm.fact_files import LLM_ARGS_FILE, SPECULATIVE_FILE, load_facts

_JULY_2026 = "1.3.0rc (July-Aug 2026 main)"
_EARLY_2026 = "1.3.0-dev (early 2026)"
_GROUPS = ("base", "torch", "kv_cache_config", "cuda_graph_config")


@dataclass(frozen=True, slots=True)
class Era:
    """Where the classes of some versions are read: a type in the first of `speculative` that has it, a group in the
    first of `llm_args` that has its fields. `meaning` of a schedule there, as upstream words it."""

    speculative: tuple[str, ...]
    llm_args: tuple[str, ...]
    meaning: str | None
    is_union: bool


_MAIN = (_JULY_2026,)
ERAS: Mapping[str, Era] = {
    "1.0.0": Era(("1.0.0",), ("1.0.0",), None, False),
    "1.2.0rc": Era(("1.2.0rc",), ("1.2.0rc",), None, False),
    "1.2.1": Era(("1.2.1",), ("1.2.1", "1.2.0rc"), "from key on", False),
    "early 2026": Era((_EARLY_2026,), _MAIN, "from key on", True),
    "1.3.0rc27": Era(("1.3.0rc27", _JULY_2026), _MAIN, "up to key", True),
    "1.4.0rc1": Era(("1.4.0rc1", "1.3.0rc27", _JULY_2026), _MAIN, "up to key", True),
    "1.4.0rc4": Era(("1.4.0rc4", "1.4.0rc1", "1.3.0rc27", _JULY_2026), _MAIN, "up to key", True),
}
# What a test may install -> the eras it may be like: the neighbours of one that nobody read.
VERSIONS: Mapping[str, tuple[str, ...]] = {
    "1.0.0": ("1.0.0",),
    "1.0.0.post1": ("1.0.0", "1.2.0rc"),
    "1.0.3.2510": ("1.0.0", "1.2.0rc"),
    "1.1.0": ("1.0.0", "1.2.0rc"),
    "1.1.0.post1": ("1.0.0", "1.2.0rc"),
    "1.2.0rc6": ("1.2.0rc",),
    "1.2.0.post1": ("1.2.0rc", "1.2.1"),
    "1.2.0.2511": ("1.2.0rc", "1.2.1"),
    "1.2.1": ("1.2.1",),
    "1.2.1.post1": ("1.2.1",),
    "1.2.1.2511": ("1.2.1",),
    "1.3.0rc5": ("early 2026",),
    "1.3.0rc27": ("1.3.0rc27",),
    "1.3.0rc29": ("1.3.0rc27", "1.4.0rc1"),
    "1.4.0rc1": ("1.4.0rc1",),
    "1.4.0rc4": ("1.4.0rc4",),
    "1.4.1": ("1.4.0rc4",),
}

_LLM_ARGS_SOURCE = """
import json
from pathlib import Path
from typing import Annotated, Any, Dict, List, Literal, Optional, Union

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, create_model, model_validator

_FACTS = json.loads(Path(__file__).with_name("facts.json").read_text())
_TYPES = {"int": int, "float": float, "bool": bool, "str": str, "path": Path, "dict[int,int]": Dict[int, int],
          "list[int]": List[int], "null": type(None)}


class StrictBaseModel(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class DecodingBaseConfig(StrictBaseModel):
    @model_validator(mode="after")
    def _check(self):
        for name, minimum in _FACTS["rules"].get(type(self).__name__, {}).items():
            value = getattr(self, name)
            if value is None or (minimum is not None and value <= minimum):
                raise ValueError(f"{name} must be given")
        schedule = getattr(self, "draft_len_schedule", None)
        if schedule is not None:
            if _FACTS["meaning"] == "from key on" and 1 not in schedule:
                raise ValueError("draft_len_schedule must contain batch size 1")
            if schedule[min(schedule)] != self.max_draft_len:
                raise ValueError("draft_len_schedule must start with max_draft_len")
            if _FACTS["meaning"] == "up to key" and self.max_concurrency is not None:
                raise ValueError("max_concurrency and draft_len_schedule are mutually exclusive")
        return self

    if not _FACTS["is_union"]:
        @classmethod
        def from_dict(cls, data):
            chosen = _BY_TYPE.get(data.get("decoding_type"))
            if chosen is None:
                raise ValueError(f"Invalid decoding type: {data.get('decoding_type')}")
            data.pop("decoding_type")
            return chosen(**data)


def _annotation(text):
    options = [_TYPES.get(option, Any) for option in text.split("|")]
    return Any if Any in options else Union[tuple(options)]


def _field(entry):
    required = entry["is_required"] and not entry["by_validator"]
    aliases = entry["aliases"]
    alias = AliasChoices(entry["name"], *aliases) if aliases else None
    bounds = {key: entry[key] for key in ("ge", "le") if entry[key] is not None}
    annotation = _annotation(entry["type"])
    if bounds:
        annotation = Optional[Annotated[{"int": int, "float": float}[entry["type"].split("|")[0]], Field(**bounds)]]
    return annotation, Field(... if required else entry["default"], validation_alias=alias)


def _model(name, base, fields, **extra):
    made = create_model(name, __base__=base, __module__=__name__, **{f["name"]: _field(f) for f in fields}, **extra)
    globals()[name] = made
    return made


_BY_TYPE = {}
for _decoding_type, _entry in _FACTS["types"].items():
    _extra = {"decoding_type": (Literal[_decoding_type], _decoding_type)} if _FACTS["is_union"] else {}
    _BY_TYPE[_decoding_type] = _model(_entry["class"], DecodingBaseConfig, _entry["fields"], **_extra)
    if not _FACTS["is_union"]:
        _BY_TYPE[_decoding_type].decoding_type = _decoding_type

SpeculativeConfig = Union[tuple(_BY_TYPE.values())]
if _FACTS["is_union"]:
    SpeculativeConfig = Annotated[SpeculativeConfig, Field(discriminator="decoding_type")]

KvCacheConfig = _model("KvCacheConfig", StrictBaseModel, _FACTS["groups"]["kv_cache_config"])
CudaGraphConfig = _model("CudaGraphConfig", StrictBaseModel, _FACTS["groups"]["cuda_graph_config"])
_NESTED = {
    "speculative_config": (Optional[SpeculativeConfig], None),
    "kv_cache_config": (KvCacheConfig, Field(default_factory=KvCacheConfig)),
    "cuda_graph_config": (Optional[CudaGraphConfig], Field(default_factory=CudaGraphConfig)),
}
_own = {f["name"]: f for group in ("base", "torch") for f in _FACTS["groups"][group]}
TorchLlmArgs = _model(
    "TorchLlmArgs", StrictBaseModel, [f for f in _own.values() if f["name"] not in _NESTED], **_NESTED
)
LlmArgs = TorchLlmArgs
"""


def write_fake_tensorrt_llm(
    folder: Path, version: str, spellings: Mapping[str, str] | None = None, era: str | None = None
) -> Path:
    """Write the package and its metadata into `folder` and return `folder`, to be put on the import path.

    `spellings` method value -> the only decoding_type accepted for it, where the facts leave it open or a test wants
    another. `era` one of `VERSIONS[version]`, by default the first.
    """
    classes = ERAS[era or VERSIONS[version][0]]
    facts: dict[str, Any] = {
        "is_union": classes.is_union,
        "meaning": classes.meaning,
        "types": {},
        "rules": {},
        "groups": {group: fake_group(classes, group) for group in _GROUPS},
    }
    renamed = {old: new for method, new in (spellings or {}).items() for old in SPELLINGS[_method(method)]}
    for decoding_type, (class_name, fields) in fake_types(classes).items():
        facts["types"][renamed.get(decoding_type, decoding_type)] = {"class": class_name, "fields": fields}
        facts["rules"][class_name] = {
            field["name"]: 0 if field["type"].startswith("int") else None
            for field in fields
            if field["is_required"] and field["by_validator"]
        }
    package = folder / "tensorrt_llm"
    (package / "llmapi").mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (package / "llmapi" / "__init__.py").write_text("")
    (package / "llmapi" / "llm_args.py").write_text(_LLM_ARGS_SOURCE)
    (package / "llmapi" / "facts.json").write_text(json.dumps(facts))
    metadata = folder / f"tensorrt_llm-{version}.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n")
    return folder


@contextlib.contextmanager
def on_import_path(folder: Path) -> Iterator[None]:
    """`folder` first on the import path, with no module of an earlier `tensorrt_llm` left before or after."""
    _forget_modules()
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _forget_modules()


def _forget_modules() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorrt_llm"]:
        del sys.modules[name]


def _method(value: str) -> Any:
    return next(method for method in SPELLINGS if method.value == value)


def fake_types(era: Era) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """decoding_type -> (class name, its fields); all types that the PyTorch backend serves."""
    versions = load_facts(SPECULATIVE_FILE)["versions"]
    found: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    for source in era.speculative:
        for name, entry in versions[source]["types"].items():
            if name not in found and "pytorch" in entry["backends"]:
                found[name] = (entry["class"], [_raw_field(key, raw) for key, raw in entry["fields"].items()])
    return found


def fake_group(era: Era, group: str) -> list[dict[str, Any]]:
    """Fields of one group of LLM arguments; what 1.2.1 has of a group that nobody saw is what was there before it."""
    versions = load_facts(LLM_ARGS_FILE)["versions"]
    for source in era.llm_args:
        table = versions[source].get(group, {})
        if fields := [_raw_field(key, raw) for key, raw in table.items() if isinstance(raw, dict) and "type" in raw]:
            return fields
    raise AssertionError(f"no {group} in {era.llm_args}")


def accepted_by_fake(fields: list[dict[str, Any]]) -> set[str]:
    """Every name that a class of these fields takes."""
    return {name for field in fields for name in (field["name"], *field["aliases"])}


def _raw_field(name: str, raw: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "type": raw["type"],
        "default": raw.get("default"),
        "is_required": raw.get("required", False),
        "by_validator": raw.get("required_by") == "validator",
        "aliases": raw.get("aliases", []),
        "ge": raw.get("min"),
        "le": raw.get("max"),
    }

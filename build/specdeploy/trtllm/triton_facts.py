"""Triton models of the engine flow's repository: tensors, parameters, template variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from specdeploy.trtllm.fact_files import TRITON_FILE, load_facts


@dataclass(frozen=True, slots=True)
class TritonTensor:
    """One input or output of a Triton model. `data_type` without TYPE_, or a template variable such as
    ${logits_datatype}; `dims` without the batch dimension, -1 = any."""

    name: str
    data_type: str
    dims: tuple[int, ...]
    optional: bool
    reshape_to_scalar: bool


@dataclass(frozen=True, slots=True)
class TritonModelFacts:
    """A model of the engine flow's repository. `parameters` name -> {template or fixed, type, default, choices};
    `template_keys` are all variables of its config.pbtxt."""

    inputs: tuple[TritonTensor, ...]
    outputs: tuple[TritonTensor, ...]
    parameters: Mapping[str, dict[str, Any]]
    template_keys: tuple[str, ...]


def triton_model(name: str) -> TritonModelFacts:
    """A model of the engine flow by its stock name (tensorrt_llm, tensorrt_llm_bls, ensemble, ...). Raises KeyError."""
    entry = load_facts(TRITON_FILE)["flows"]["engine"]["models"][name]
    return TritonModelFacts(
        inputs=_tensors(entry["inputs"]),
        outputs=_tensors(entry["outputs"]),
        parameters=MappingProxyType({key: dict(value) for key, value in entry["parameters"].items()}),
        template_keys=tuple(entry["template_keys"]),
    )


def _tensors(table: Mapping[str, Any]) -> tuple[TritonTensor, ...]:
    return tuple(
        TritonTensor(
            name=name,
            data_type=entry["dtype"],
            dims=tuple(entry["dims"]),
            optional=bool(entry.get("optional", False)),
            reshape_to_scalar=bool(entry.get("reshape_to_scalar", False)),
        )
        for name, entry in table.items()
    )

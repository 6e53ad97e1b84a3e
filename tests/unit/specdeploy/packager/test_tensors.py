"""The public model's tensors against TensorRT-LLM's own."""

import json
from importlib.resources import files
from typing import Any

import pytest

from specdeploy.packager.tensors import INPUTS, OUTPUTS, OWN_INPUTS, OWN_OUTPUTS, STOCK_INPUTS, STOCK_OUTPUTS, Tensor

STOCK: dict[str, Any] = json.loads(files("specdeploy.packager").joinpath("stock_tensors.json").read_text())["models"]
LOGITS = {"${logits_datatype}": "FP32"}


def facts_of(tensor: Tensor, *, is_input: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"dtype": str(tensor.data_type), "dims": list(tensor.dims)}
    if is_input:
        facts["optional"] = tensor.optional
    if tensor.reshape_to_scalar:
        facts["reshape_to_scalar"] = True
    return facts


@pytest.mark.parametrize(("kind", "table"), [("inputs", STOCK_INPUTS), ("outputs", STOCK_OUTPUTS)])
def test_stock_tensors_are_those_of_tensorrt_llm_bls(kind: str, table: tuple[Tensor, ...]) -> None:
    stock = {
        name: {**facts, "dtype": LOGITS.get(facts["dtype"], facts["dtype"])}
        for name, facts in STOCK["tensorrt_llm_bls"][kind].items()
    }
    assert {tensor.name: facts_of(tensor, is_input=kind == "inputs") for tensor in table} == stock


@pytest.mark.parametrize(("kind", "table"), [("inputs", STOCK_INPUTS), ("outputs", STOCK_OUTPUTS)])
def test_clients_of_ensemble_are_served_too(kind: str, table: tuple[Tensor, ...]) -> None:
    ours = {tensor.name: tensor for tensor in table}
    for name, facts in STOCK["ensemble"][kind].items():
        tensor = ours[name]
        assert (list(tensor.dims), tensor.optional) == (facts["dims"], facts.get("optional", False))
        assert str(tensor.data_type) == LOGITS.get(facts["dtype"], facts["dtype"])


def test_own_inputs_are_optional_so_that_stock_clients_work() -> None:
    assert all(tensor.optional for tensor in OWN_INPUTS)


def test_names_are_unique() -> None:
    for table in (INPUTS, OUTPUTS):
        assert len({tensor.name for tensor in table}) == len(table)
    assert {tensor.name for tensor in OWN_OUTPUTS} == {
        "output_ids",
        "finish_reason",
        "input_token_count",
        "output_token_count",
        "num_steps",
        "speculation",
        "speculation_stats",
    }

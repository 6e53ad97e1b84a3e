"""Guided decoding on a real Triton server: in form, undrafted by default, and the same text where it is drafted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc

from integration.conftest import Deployed, deploy
from specdeploy.serving.server import stop_server

pytestmark = pytest.mark.integration

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo", "Lima"]},
        "codes": {"type": "array", "items": {"type": "integer", "minimum": 10, "maximum": 99}, "maxItems": 4},
        "is_open": {"type": "boolean"},
    },
    "required": ["city", "codes", "is_open"],
}
PROMPT = "item one then item one then item one"


def ask(deployed: Deployed, kind: str, guide: str, **fields: Any) -> dict[str, Any]:
    """One whole answer over gRPC; `error` where it was refused."""
    values: dict[str, tuple[str, Any]] = {
        "text_input": ("BYTES", PROMPT.encode()),
        "max_tokens": ("INT32", 200),
        "guided_decoding_guide_type": ("BYTES", kind.encode()),
        "guided_decoding_guide": ("BYTES", guide.encode()),
    } | {name: ("INT32", value) for name, value in fields.items()}
    inputs = []
    for name, (triton_type, value) in values.items():
        inputs.append(triton_grpc.InferInput(name, [1, 1], triton_type))
        inputs[-1].set_data_from_numpy(np.array([[value]], dtype=object if triton_type == "BYTES" else np.int32))
    answers: list[Any] = []
    with triton_grpc.InferenceServerClient(deployed.grpc_url) as client:
        client.start_stream(callback=lambda result, error: answers.append(error or result))
        client.async_stream_infer("llm", inputs)
        client.stop_stream()
    (answer,) = answers
    if isinstance(answer, Exception):
        return {"error": str(answer)}
    names = ("text_output", "finish_reason", "speculation", "total_draft_tokens", "total_accepted_draft_tokens")
    arrays = {name: answer.as_numpy(name) for name in names}
    return {name: array.ravel()[0] for name, array in arrays.items() if array is not None}


def assert_in_form(answer: dict[str, Any]) -> None:
    assert answer.get("error") is None, answer
    assert answer["finish_reason"] == b"stop"
    jsonschema.validate(json.loads(answer["text_output"]), SCHEMA)


def test_a_schema_is_followed_and_not_drafted_for(deployed: Deployed) -> None:
    answer = ask(deployed, "json_schema", json.dumps(SCHEMA), num_draft_tokens=4)
    assert_in_form(answer)
    assert answer["speculation"] == b"off:constrained"
    assert answer["total_draft_tokens"] == 0


@pytest.mark.parametrize(
    ("kind", "guide", "message"),
    [
        ("json_schema", '{"type": "objekt"}', "guided_decoding_guide: cannot be compiled as json_schema: Unsupported"),
        ("json_schema", '{"not": {}}', "guided_decoding_guide: #/not is not enforced"),
        ("json_schema", '{"name": "n", "schema": {}}', "guided_decoding_guide: is no schema but wraps one"),
        ("regex", "(", "guided_decoding_guide: cannot be compiled as regex"),
    ],
)
def test_a_guide_that_would_not_be_enforced_is_an_error(
    deployed: Deployed, kind: str, guide: str, message: str
) -> None:
    assert message in ask(deployed, kind, guide)["error"]
    assert_in_form(ask(deployed, "json_schema", json.dumps(SCHEMA)))


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A server that drafts for guides as for everything; as a canary, because nobody has verified its build."""
    root = tmp_path_factory.mktemp("guided")
    speculation = {"method": "ngram", "max_draft_len": 4, "constrained": "on"}
    try:
        served = deploy(root, "guided", {"speculation": speculation}, is_canary=True)
        yield served
    finally:
        stop_server(root / "state", "guided")
    log = Path(served.state.log_path).read_text()
    assert "Exit timeout expired" not in log  # no thread keeps a request


def test_drafted_json_is_the_undrafted_json(deployed: Deployed, drafting: Deployed) -> None:
    guide = json.dumps(SCHEMA)
    drafted = ask(drafting, "json_schema", guide)
    undrafted = ask(drafting, "json_schema", guide, num_draft_tokens=0)
    assert_in_form(drafted)
    assert drafted["speculation"] == b"on"
    assert drafted["total_draft_tokens"] > 0
    assert undrafted["speculation"] == b"off:requested"
    assert undrafted["text_output"] == drafted["text_output"]
    assert ask(deployed, "json_schema", guide)["text_output"] == drafted["text_output"]

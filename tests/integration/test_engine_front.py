"""`llm` of the engine lane on a real Triton server: requests run on other Triton models, called from its threads.

The engines are stand-ins on the torch runtime with the tensors, types, shapes and habits of the C++ backend.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import Tokenizer

from helpers.deployment_files import write_deployment
from helpers.engine_standins.build import BUILD_ID, engine_config, engine_record, write_engine_build
from helpers.engine_standins.engine import Settings
from helpers.engine_standins.repository import write_stand_in
from helpers.tiny_checkpoint import make_checkpoint
from integration.conftest import Deployed, free_port
from integration.test_llm import PROMPTS, answer, answer_all, assert_idle, completion, ids, post, request, run
from specdeploy.config.load import load_deployment
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import EngineModel, EngineRecord, RepositoryManifest
from specdeploy.manifest import REPOSITORY_MANIFEST_NAME, hash_folder
from specdeploy.packager.engine_models import BUILD_MODES
from specdeploy.packager.packaged_build import PackagedBuild
from specdeploy.packager.repository import pack_repository
from specdeploy.runtime.engine import Engine
from specdeploy.runtime.model import DecoderModel
from specdeploy.runtime.request import GenerationRequest
from specdeploy.serving.launch import plan_launch
from specdeploy.serving.server import start_server, stop_server
from specdeploy.trtllm.facts import triton_model
from specdeploy_client.transports.triton_grpc import GrpcTransport

pytestmark = pytest.mark.integration

K = 3
MAX_SEQ_LEN = 256
SERVING = {"max_rows": 4, "max_queue": 40, "max_seq_len": MAX_SEQ_LEN}


@dataclass(frozen=True, slots=True)
class StandIn:
    """A Triton model of the deployment: the checkpoint it runs and how it behaves."""

    checkpoint: str
    settings: dict[str, Any] = field(default_factory=dict)


def deploy_engines(root: Path, name: str, models: dict[EngineModel, StandIn], speculation: dict[str, Any]) -> Deployed:
    """A server with `llm` of the engine lane and stand-ins beside it.

    The wheel's server has no C++ backend and the lane is only started in its container, so the server is started as for
    lane torch; what `llm` reads says engine lane.
    """
    make_checkpoint(root / "configs" / "deployments" / "checkpoint")
    make_checkpoint(root / "other", seed=1, num_layers=1)
    folders = {"target": root / "configs" / "deployments" / "checkpoint", "other": root / "other"}
    serving = {**SERVING, "http_port": free_port(), "grpc_port": free_port(), "metrics_port": free_port()}
    path = write_deployment(root / "configs", name, {"serving": serving})
    loaded = load_deployment(path, root / "configs")
    pack_repository(loaded.config, root / "triton_repo")
    config = engine_config(name, serving=serving, speculation=speculation)
    records = [engine_record_of(config, model, stand_in) for model, stand_in in models.items()]
    build = PackagedBuild(str(root / "engines" / BUILD_ID), tuple(records), None, {"tensorrt_llm": "1.2.1"})
    for record, stand_in in zip(records, models.values(), strict=True):
        settings = Settings(decoding=record.decoding, max_seq_len=MAX_SEQ_LEN, **stand_in.settings)
        folder = folders[stand_in.checkpoint]
        write_stand_in(root / "triton_repo" / name, config, build, record, folder, settings)
    write_engine_build(
        root / "engines",
        config,
        target=folders["target"],
        draft=folders[models[EngineModel.DRAFT].checkpoint] if EngineModel.DRAFT in models else None,
        engines=tuple(records),
        config_digest=loaded.digest,
    )
    record_repository(root / "triton_repo" / name, loaded.digest)
    plan = plan_launch(loaded, engines_root=root / "engines", repo_root=root / "triton_repo", state_root=root / "state")
    state, _ = start_server(plan, timeout_s=120.0)
    deployed = Deployed(root, loaded, state)
    wait_until_all_are_ready(deployed)
    return deployed


def engine_record_of(config: DeploymentConfig, model: EngineModel, stand_in: StandIn) -> EngineRecord:
    decoding = BUILD_MODES[config.speculation.method] if model is EngineModel.TARGET else None
    num_drafts = stand_in.settings.get("max_draft_len", 0)
    return engine_record(model, max_draft_len=num_drafts, max_seq_len=MAX_SEQ_LEN, decoding=decoding)


def record_repository(folder: Path, config_digest: str) -> None:
    """What `make repo` would have written of it, stand-ins included: a repository that was changed is not served."""
    (folder / REPOSITORY_MANIFEST_NAME).unlink()
    manifest = RepositoryManifest(
        deployment=folder.name,
        build_id=BUILD_ID,
        config_digest=config_digest,
        models=tuple(sorted(path.name for path in folder.iterdir() if path.is_dir())),
        files=hash_folder(folder),
    )
    (folder / REPOSITORY_MANIFEST_NAME).write_text(manifest.model_dump_json())


def wait_until_all_are_ready(deployed: Deployed) -> None:
    url = f"http://{deployed.state.host}:{deployed.state.http_port}/v2/health/ready"
    deadline = time.monotonic() + 60
    while httpx.get(url, trust_env=False).status_code != httpx.codes.OK:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def serve(root: Path, name: str, *arguments: Any) -> Iterator[Deployed]:
    try:
        yield deploy_engines(root, name, *arguments)
    finally:
        stop_server(root / "state", name, grace_s=3.0)


PAIR = {"method": "draft_model", "max_draft_len": K, "draft": {"checkpoint": "unused"}}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Another model drafts; both repeat the prompt, and the target reports no counts."""
    habits = {"repeats_prompt": True, "reports_counts": False}
    models = {
        EngineModel.TARGET: StandIn("target", {"max_draft_len": K, **habits}),
        EngineModel.DRAFT: StandIn("other", habits),
    }
    yield from serve(tmp_path_factory.mktemp("pair"), "pair", models, PAIR)


@pytest.fixture(scope="module")
def self_drafted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """The target drafts for itself. `die` in its root ends the draft's process inside its next call."""
    root = tmp_path_factory.mktemp("self")
    models = {
        EngineModel.TARGET: StandIn("target", {"max_draft_len": K, "step_s": 0.002}),
        EngineModel.DRAFT: StandIn("target", {"die_when": root / "die", "fail_when": root / "fail"}),
    }
    yield from serve(root, "selfdraft", models, PAIR)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """A method that drafts inside the engine: decoupled models, a plain one beside."""
    models = {
        EngineModel.TARGET: StandIn(
            "target", {"max_draft_len": 7, "decoupled": True, "step_s": 0.002, "accepts": (2, 0, 1)}
        ),
        EngineModel.TARGET_PLAIN: StandIn("target", {"decoupled": True}),
    }
    speculation = {"method": "eagle", "max_draft_len": 4, "draft": {"checkpoint": "unused"}}
    yield from serve(tmp_path_factory.mktemp("tree"), "tree", models, speculation)


Reference = Callable[[str, int], tuple[int, ...]]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """What the torch lane's engine answers without drafting, in this process."""
    folder = make_checkpoint(tmp_path_factory.mktemp("reference"))
    model = DecoderModel(folder, dtype=torch.float32, device=torch.device("cpu"), max_seq_len=MAX_SEQ_LEN)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def generate(prompt: str, max_tokens: int) -> tuple[int, ...]:
        engine = Engine(model, None, max_rows=1, max_queue=1, prefill_chunk=64)
        engine.submit(GenerationRequest("r", tuple(tokenizer.encode(prompt).ids), max_tokens))
        output: list[int] = []
        with torch.inference_mode():
            while engine.num_in_flight:
                output += [token for update in engine.step() for token in update.token_ids]
        return tuple(output)

    return generate


def test_drafting_changes_no_token_alone_and_in_company(pair: Deployed, reference: Reference) -> None:
    expected = [reference(prompt, 24) for prompt in PROMPTS]
    assert [ids(answer(pair, request(prompt, num_draft_tokens=0))) for prompt in PROMPTS] == expected
    for draft_lens in ((K,), (0, 1, K), (None, 2)):
        items = [request(p, num_draft_tokens=draft_lens[i % len(draft_lens)]) for i, p in enumerate(PROMPTS)]
        answers = answer_all(pair, items)
        assert [ids(messages) for messages in answers] == expected
        for item, messages in zip(items, answers, strict=True):
            last = completion(messages)
            assert last.speculation == ("off:requested" if item.num_draft_tokens == 0 else "on")
            assert last.output_token_count == 24
    assert_idle(pair)


def test_counts_on_the_metrics_port_equal_the_clients_sums(pair: Deployed) -> None:
    before = pair.facts.counters["chat"]
    answers = answer_all(pair, [request(prompt, segment="chat") for prompt in PROMPTS])
    increase = pair.facts.counters["chat"].since(before)
    told = [completion(messages) for messages in answers]
    assert sum(last.total_draft_tokens or 0 for last in told) == increase.num_draft_tokens > 0
    assert sum(last.total_accepted_draft_tokens or 0 for last in told) == increase.num_accepted_tokens
    body = post(pair, "generate").json()
    assert body["speculation_stats"] == "derived:common prefix of draft and output"


def test_a_target_drafting_for_itself_is_accepted_over_the_whole_request(
    self_drafted: Deployed, reference: Reference
) -> None:
    # The first request finds out whether the draft repeats its prompt; others go a round without drafts meanwhile.
    answer(self_drafted, request(PROMPTS[0]))
    for prompt, messages in zip(PROMPTS, answer_all(self_drafted, [request(p) for p in PROMPTS]), strict=True):
        assert ids(messages) == reference(prompt, 24)
        last = completion(messages)
        assert last.total_draft_tokens == last.total_accepted_draft_tokens == 18
        assert last.num_steps == len(messages) == 6
    body = post(self_drafted, "generate").json()
    assert (body["speculation_stats"], body["acceptance_rate"]) == ("measured", 1.0)


def test_whole_and_streamed_answers_agree(self_drafted: Deployed) -> None:
    whole = post(self_drafted, "generate").json()
    streamed = answer(self_drafted, request(max_tokens=12))
    assert whole["text_output"] == "".join(message.text for message in streamed)
    plain = answer(self_drafted, request(max_tokens=40, num_draft_tokens=0))
    assert [len(message.output_ids or ()) for message in plain] == [16, 16, 8]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_p": 0.5, "temperature": 1.0}, "min_p: the TensorRT-LLM C++ backend has no input for it"),
        ({"text_input": "x" * 253}, "leave no room for output"),
    ],
)
def test_what_the_lane_cannot_do_is_refused_by_name(
    self_drafted: Deployed, fields: dict[str, Any], message: str
) -> None:
    response = post(self_drafted, "generate", **fields)
    assert response.status_code >= 400
    assert message in response.json()["error"]
    assert_idle(self_drafted)


def test_a_client_that_goes_frees_everything(self_drafted: Deployed) -> None:
    async def leave(transport: GrpcTransport) -> None:
        stream = transport.stream(request("x " * 20, max_tokens=180, num_draft_tokens=0))
        await anext(stream)
        await stream.aclose()

    async def crowd(transport: GrpcTransport) -> None:
        await asyncio.gather(*(leave(transport) for _ in range(6)))

    run(self_drafted, crowd)
    assert_idle(self_drafted)
    assert completion(answer(self_drafted, request())).output_token_count == 24


@pytest.mark.parametrize("switch", ["fail", "die"])
def test_a_draft_that_fails_or_dies_does_not_end_requests(
    self_drafted: Deployed, reference: Reference, switch: str
) -> None:
    file = self_drafted.root / switch
    expected = [reference(prompt, 100) for prompt in PROMPTS[:4]]

    async def break_the_draft(transport: GrpcTransport) -> list[Any]:
        async def follow(prompt: str) -> list[Any]:
            messages = []
            async for message in transport.stream(request(prompt, max_tokens=100)):
                messages.append(message)
                if prompt == PROMPTS[0] and len(messages) == 2:
                    file.touch()
            return messages

        return list(await asyncio.gather(*(follow(prompt) for prompt in PROMPTS[:4])))

    answers: list[list[Any]] = run(self_drafted, break_the_draft)
    assert [ids(messages) for messages in answers] == expected
    drafted = [completion(messages).total_draft_tokens or 0 for messages in answers]
    # The request that broke the draft was drafted for, not to its end; others may not have come to their first draft.
    assert completion(answers[0]).speculation == "on"
    assert 0 < drafted[0] < 75
    assert all(num_drafted < 75 for num_drafted in drafted)
    if switch == "die":
        assert not file.exists()  # its process took the order with it
    file.unlink(missing_ok=True)
    assert_idle(self_drafted)
    assert "requests go on without drafting" in Path(self_drafted.state.log_path).read_text()
    assert ids(answer(self_drafted, request(PROMPTS[0], max_tokens=100))) == expected[0]


def test_decoupled_engines_stream_and_route(tree: Deployed, reference: Reference) -> None:
    items = [request(p, num_draft_tokens=(None, 0)[i % 2]) for i, p in enumerate(PROMPTS)]
    for item, prompt, messages in zip(items, PROMPTS, answer_all(tree, items), strict=True):
        assert ids(messages) == reference(prompt, 24)
        last = completion(messages)
        assert last.speculation == ("on" if item.num_draft_tokens is None else "off:requested")
        if item.num_draft_tokens is None:
            # One token at the prompt, then 3 + 1 + 2 by turns; of the last 3 tokens, 2 are left.
            assert [len(message.output_ids or ()) for message in messages] == [1, *[3, 1, 2] * 3, 3, 1, 1]
            assert (last.num_steps, last.total_draft_tokens, last.total_accepted_draft_tokens) == (13, 84, 11)
        else:
            assert len(messages) == 24


def test_the_server_loaded_what_is_packed_for_the_engines(self_drafted: Deployed, tree: Deployed) -> None:
    for deployed, model, decoupled in (
        (self_drafted, "target", False),
        (self_drafted, "draft", False),
        (tree, "target", True),
        (tree, "target_plain", True),
    ):
        url = f"http://{deployed.state.host}:{deployed.state.http_port}/v2/models/{model}/config"
        loaded = httpx.get(url, trust_env=False).json()
        assert loaded["model_transaction_policy"]["decoupled"] is decoupled
        assert loaded["max_batch_size"] == 4
        assert loaded["parameters"]["gpt_model_path"]["string_value"].endswith(f"{model}_engine")
        expected = {(tensor.name, f"TYPE_{tensor.data_type}") for tensor in triton_model("tensorrt_llm").inputs}
        found = {(tensor["name"], tensor["data_type"]) for tensor in loaded["input"]}
        assert {name for name, _ in found} == {name for name, _ in expected}
        assert found - expected <= {  # template types, filled
            ("encoder_input_features", "TYPE_FP16"),
            ("prompt_embedding_table", "TYPE_FP16"),
            ("draft_logits", "TYPE_FP32"),
        }


def test_a_client_that_goes_ends_a_stream(tree: Deployed) -> None:
    async def leave(transport: GrpcTransport) -> None:
        stream = transport.stream(request(max_tokens=200))
        await anext(stream)
        await stream.aclose()

    run(tree, leave)
    assert_idle(tree)

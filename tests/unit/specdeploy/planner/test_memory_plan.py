"""Memory of the TensorRT-LLM lanes, worked out by hand for published shapes that are not on this machine."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from specdeploy.checkpoint.known_models import known_model
from specdeploy.checkpoint_contract import CheckpointInfo
from specdeploy.config.load import load_deployment
from specdeploy.config.schema import DeploymentConfig, Gpu, PlainInstance, TensorRtLlmConfig
from specdeploy.contract import EngineModel, Lane, MemoryBudget
from specdeploy.planner.hardware import HARDWARE, Hardware
from specdeploy.planner.memory_plan import default_captured_sizes, plan_memory_of
from specdeploy.planner.request_tokens import RequestTokens
from specdeploy.planner.torch_memory import TorchDevice
from specdeploy.planner_contract import PlanMemory

CONFIGS = Path(__file__).parents[4] / "configs"
SHIPPED = (
    "llama-3-1-8b-eagle3",
    "llama-3-3-70b-draft-1b",
    "llama-3-1-405b-draft-3b",
    "vicuna-13b-medusa",
    "qwen3-8b-ngram",
    "deepseek-v3-mtp",
    "mixtral-8x7b-ngram",
)
REQUEST = RequestTokens(1500, 500)


def deployment(name: str, **section: Any) -> DeploymentConfig:
    config = load_deployment(name, CONFIGS).config
    assert config.tensorrt_llm is not None
    return config.model_copy(update={"tensorrt_llm": config.tensorrt_llm.model_copy(update=section)})


def infos(config: DeploymentConfig) -> tuple[CheckpointInfo, CheckpointInfo | None]:
    target = known_model(config.target.checkpoint, CONFIGS)
    assert target is not None
    draft = config.speculation.draft
    return target, known_model(draft.checkpoint, CONFIGS) if draft is not None else None


def planned(config: DeploymentConfig, request: RequestTokens = REQUEST, **keywords: Any) -> PlanMemory:
    assert config.tensorrt_llm is not None
    return plan_memory_of(config, *infos(config), HARDWARE[config.tensorrt_llm.gpu], request, **keywords)


def line(budget: MemoryBudget, subject: str) -> int:
    return sum(entry.num_bytes for entry in budget.lines if entry.subject == subject)


def test_405b_fp8_on_four_gpus_with_a_bf16_draft_on_one_of_them() -> None:
    """GQA, a tied draft, fp8 beside bf16, and a draft that makes rank 0 the full one."""
    found = planned(deployment("llama-3-1-405b-draft-3b", draft_tensor_parallel=1))
    first, second = found.ranks[0], found.ranks[1]

    assert len(found.ranks) == 4
    assert found.budget.gpu == first.gpu == "H200 SXM (GPU 0)"
    # 405 853 388 800 parameters, of them 2 x 2 101 346 304 in tables and 4 145 152 in norms in 16 bit; the rest in 8.
    # (401 646 551 040 + 4 202 692 608 of output layer) / 4 + norms 8 290 304 + embedding 4 202 692 608
    assert line(first, "weights of target") == line(second, "weights of target") == 105_673_293_824
    # 3 212 749 824 x 2 + the tied table 128256 x 3072 x 2 again
    assert line(first, "weights of draft") == 6_425_499_648 + 788_004_864
    assert line(second, "weights of draft") == 0
    # 8192 x (2 x 16384 + 144 x 128 / 4 + 3 x 53248 / 4) x 2 + 16 x 9 rows x 128256 x 8
    assert line(first, "activations of target") == 1_266_679_808 + 147_750_912
    # 8192 x (2 x 3072 + 40 x 128 + 3 x 8192) x 2 + the same rows
    assert line(first, "activations of draft") == 587_202_560 + 147_750_912
    # 85 % of 141e9 - 105 673 293 824 - 7 213 504 512 - 1 414 430 720 - 734 953 472 - 2 x 2 GiB
    assert first.kv_bytes == 18_418_522_649
    # 2 x 126 x (8 / 4) x 128 x 2 and 2 x 28 x 8 x 128 x 2
    assert found.budget.kv_bytes_per_token == {EngineModel.TARGET: 129_024, EngineModel.DRAFT: 114_688}
    # 18 418 522 649 / 243 712 = 75 574, in blocks of 32: 2361
    assert found.budget.kv_tokens == {EngineModel.TARGET: 75_552, EngineModel.DRAFT: 75_552}
    # On the other ranks 31 764 791 808 x 0.85 / 129 024 = 209 263
    assert second.kv_tokens == {EngineModel.TARGET: 209_248}
    # 2008 tokens are 63 blocks: 2361 / 63. Alone 16 rows of logits, 210 129 tokens, 6566 blocks for 2000 tokens.
    assert (found.request_tokens, found.num_requests, found.num_requests_without_draft) == (2008, 37, 104)
    assert found.draft_costs_requests == 67
    assert found.misfit is None


def test_8b_with_an_eagle3_head_and_a_plain_instance_beside_it() -> None:
    found = planned(deployment("llama-3-1-8b-eagle3"))
    budget = found.budget

    assert line(budget, "weights of target") == line(budget, "weights of target_plain") == 16_060_522_496
    # 424 697 856 parameters: fc 50 331 648, layer 243 286 016 of 8192 columns, output layer 131 072 000, norms
    assert line(budget, "weights of draft") == pytest.approx(849_395_712, rel=0.001)
    # sizes 1 to 32 and 64 for 96 rows, 10 MB each; the head runs inside the target's graphs
    assert line(budget, "CUDA graphs of target") == line(budget, "CUDA graphs of target_plain") == 330_000_000
    assert line(budget, "CUDA graphs of draft") == 0
    assert line(budget, "draft state") == 8192 * 3 * 4096 * 2
    # a token: target and plain instance 2 x 32 x 8 x 128 x 2 each, the one layer of the head 2 x 8 x 128 x 2
    assert budget.kv_bytes_per_token == {
        EngineModel.TARGET: 131_072,
        EngineModel.DRAFT: 4096,
        EngineModel.TARGET_PLAIN: 131_072,
    }
    assert sum(budget.kv_tokens[model] * each for model, each in budget.kv_bytes_per_token.items()) <= budget.kv_bytes
    assert found.num_requests < found.num_requests_without_draft < 2.6 * found.num_requests


def test_without_the_plain_instance_half_the_memory_is_free() -> None:
    beside = planned(deployment("llama-3-1-8b-eagle3"))
    swapped = planned(deployment("llama-3-1-8b-eagle3", plain_instance=PlainInstance.SWAP))

    assert line(swapped.budget, "weights of target_plain") == 0
    assert swapped.num_requests > 1.9 * beside.num_requests
    assert swapped.num_requests_without_draft == beside.num_requests_without_draft


def test_the_cache_of_mtp_modules_is_counted() -> None:
    found = planned(deployment("deepseek-v3-mtp"))

    # a latent cache is whole on every shard: 61 layers and 3 for K, 576 values each, 16 bit
    assert found.budget.kv_bytes_per_token == {EngineModel.TARGET: 64 * 576 * 2}
    assert line(found.budget, "draft state") == 32 * 3 * 7168 * 2
    # 671.0e9 and 11.6e9 parameters in fp8 but for tables and norms, shared out to 8: about 85.6e9
    assert line(found.budget, "weights of target") == pytest.approx(85.6e9, rel=0.01)


def test_mxfp4_experts_are_weighed_by_their_bits() -> None:
    """gpt-oss-20b as published: 13.76e9 bytes. 24 x 32 experts x 3 x 2880 x 2880 at 4.25 bits, the rest at 16."""
    config = deployment("qwen3-8b-ngram", plain_instance=PlainInstance.SWAP)
    target = known_model("openai/gpt-oss-20b", CONFIGS)
    assert target is not None
    found = plan_memory_of(config, target, None, HARDWARE[Gpu.H100], REQUEST)

    assert line(found.budget, "weights of target") == pytest.approx(13_761_264_768, rel=0.002)


@pytest.mark.parametrize(
    ("name", "change", "item"),
    [
        ("mixtral-8x7b-ngram", {"tensor_parallel": 1}, "weights of target, 87.0 GiB"),  # 93.4e9 bytes on 79 GiB
        # (401 646 551 040 + 4 202 692 608) / 2 + 4 210 982 912 bytes on 131 GiB
        ("llama-3-1-405b-draft-3b", {"tensor_parallel": 2, "draft_tensor_parallel": 2}, "weights of target, 192.9 GiB"),
    ],
)
def test_what_does_not_fit_names_the_largest_item(name: str, change: dict[str, Any], item: str) -> None:
    found = planned(deployment(name, **change))

    assert found.misfit == item
    assert found.num_requests == 0
    assert found.budget.kv_bytes < found.request_tokens * sum(found.budget.kv_bytes_per_token.values())


def test_a_request_longer_than_the_caches_is_a_misfit_too() -> None:
    found = planned(deployment("vicuna-13b-medusa"), RequestTokens(30_000, 1000))

    assert found.num_requests == 0
    assert found.misfit is not None
    assert found.misfit.startswith("weights of target")


def test_graphs_can_be_stated_and_engines_have_none() -> None:
    few = planned(deployment("qwen3-8b-ngram"), num_captured_graphs=4)
    engines = planned(deployment("llama-3-3-70b-draft-1b"), num_captured_graphs=4)

    assert line(few.budget, "CUDA graphs of target") == 40_000_000
    assert not any(entry.subject.startswith("CUDA graphs") for entry in engines.budget.lines)


@pytest.mark.parametrize(("rows", "sizes"), [(1, 1), (8, 8), (32, 32), (63, 32), (64, 33), (128, 34), (1024, 34)])
def test_captured_sizes_by_default(rows: int, sizes: int) -> None:
    assert len(default_captured_sizes(rows)) == sizes


def test_a_lane_on_a_device_that_is_not_its_own() -> None:
    config = deployment("qwen3-8b-ngram")
    with pytest.raises(ValueError, match="does not run on a laptop"):
        plan_memory_of(config, *infos(config), TorchDevice("a laptop", 1 << 34), REQUEST)
    with pytest.raises(ValueError, match="lane torch does not run on H100 SXM"):
        plan_memory_of(load_deployment("demo", CONFIGS).config, *infos(config), HARDWARE[Gpu.H100], REQUEST)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_ships_fits_line_by_line(name: str) -> None:
    config = deployment(name)
    found = planned(config)

    for budget in (found.budget, *found.ranks):
        assert sum(entry.num_bytes for entry in budget.lines) + budget.kv_bytes == budget.num_bytes
        subjects = {entry.subject for entry in budget.lines}
        assert {"weights of target", "activations of target"} <= subjects
        assert (config.lane is Lane.TRTLLM_LLMAPI) == ("CUDA graphs of target" in subjects)
        used = sum(tokens * budget.kv_bytes_per_token[model] for model, tokens in budget.kv_tokens.items())
        assert used <= budget.kv_bytes
    assert found.misfit is None
    assert 1 <= found.num_requests <= found.num_requests_without_draft


@settings(deadline=None, max_examples=30)
@given(
    name=st.sampled_from(SHIPPED),
    fraction=st.floats(0.3, 0.95),
    gib=st.integers(60, 200),
    tokens=st.integers(1, 8000),
    is_target_first=st.booleans(),
)
def test_absolute_limits_hold_in_any_order_of_loading(
    name: str, fraction: float, gib: int, tokens: int, is_target_first: bool
) -> None:
    """Each engine takes the smaller of its limit and its fraction of what is free when it is loaded."""
    config = deployment(name, kv_cache_fraction=fraction)
    found = plan_memory_of(
        config, *infos(config), Hardware("a GPU", "sm90", gib << 30, "made up"), RequestTokens(tokens, tokens)
    )
    budget = found.budget
    if budget.kv_bytes <= 0:
        assert found.misfit is not None
        return
    names = list(budget.kv_tokens) if is_target_first else list(budget.kv_tokens)[::-1]
    free = budget.kv_bytes + line(budget, "kept free")
    for engine in names:
        taken = budget.kv_tokens[engine] * budget.kv_bytes_per_token[engine]
        assert taken <= math.ceil(fraction * free)
        free -= taken
    assert free >= 0


def test_two_fractions_alone_would_starve_the_second_engine() -> None:
    """0.95 and 0.95 on one GPU: why limits are written in tokens, and why the config has one fraction."""
    budget = planned(deployment("llama-3-3-70b-draft-1b", kv_cache_fraction=0.95)).budget
    free = budget.kv_bytes + line(budget, "kept free")
    target, draft = (budget.kv_bytes_per_token[model] for model in (EngineModel.TARGET, EngineModel.DRAFT))
    first = 0.95 * free // target
    second = 0.95 * (free - first * target) // draft

    assert second < 0.55 * first  # the draft could not follow the target's tokens
    assert budget.kv_tokens[EngineModel.DRAFT] == budget.kv_tokens[EngineModel.TARGET] > second
    with pytest.raises(ValidationError, match="draft_kv_cache_fraction"):
        TensorRtLlmConfig.model_validate({"version": "1.2.1", "gpu": "h200", "draft_kv_cache_fraction": 0.9})

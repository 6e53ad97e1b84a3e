"""The torch runtime on a real GPU: graphs, paged attention and losslessness. Skipped where there is none."""

import pytest
import torch

from gpu import lossless_checks
from gpu.model_shapes import LLAMA_3_1_8B, LLAMA_3_2_1B, ModelShape
from specdeploy.runtime.attention import Span
from specdeploy.runtime.graphed_model import GraphedModel
from specdeploy.runtime.static_attention import can_page

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU: PyTorch sees none"),
]


@pytest.mark.parametrize("shape", [LLAMA_3_1_8B, LLAMA_3_2_1B], ids=lambda shape: str(shape.name))
def test_paged_attention_agrees_with_gathered(shape: ModelShape) -> None:
    config = shape.config
    assert can_page(
        torch.device("cuda"),
        torch.bfloat16,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )


def test_every_check_of_outputs_passes() -> None:
    failed = [check for check in lossless_checks.run_checks(torch.device("cuda")) if not check.has_passed]
    assert failed == []


def test_trees_are_replayed() -> None:
    device = torch.device("cuda")
    model = lossless_checks.build(lossless_checks.TARGET, torch.float32, device)
    graphed = GraphedModel.of(model)
    caches = [model.new_cache(2), graphed.new_cache(2)]
    for cache in caches:
        model.forward([5, 6, 7, 8], [Span(0, 4, 1, 0)], [], cache)
    spans = [Span(0, 6, 1, 4, (-1, 0, 0, 1, 1, 2))]
    assert graphed.steps(caches[1]).can_run(spans)
    for tokens in ([1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4]):
        expected = model.forward(tokens, spans, range(6), caches[0]).logits
        torch.testing.assert_close(
            graphed.forward(tokens, spans, range(6), caches[1]).logits, expected, atol=1e-4, rtol=1e-4
        )

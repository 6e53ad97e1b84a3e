"""Packed products against plain ones."""

import pytest
import torch
import torch.nn.functional as F

from specdeploy.runtime import linear
from specdeploy.runtime.linear import Linear, can_pack, computed_sizes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [0, 1, 5, 32, 33, 63, 64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_equals_the_plain_product(dtype: torch.dtype, num_rows: int, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(48, 32, generator=generator).to(dtype)
    bias = torch.randn(48, generator=generator).to(dtype) if has_bias else None
    x = torch.randn(num_rows, 32, generator=generator).to(dtype)
    tolerance = 1e-4 if dtype is torch.float32 else 0.3
    out = Linear(weight, bias)(x)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), F.linear(x, weight, bias).float(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("num_rows", [0, 1, 64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_processor_without_bfloat16_products_rounds_what_float32_sums(
    num_rows: int, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "has_bfloat16_products", lambda: False)
    generator = torch.Generator().manual_seed(num_rows)
    weight = torch.randn(48, 32, generator=generator).bfloat16()
    bias = torch.randn(48, generator=generator).bfloat16() if has_bias else None
    x = torch.randn(num_rows, 32, generator=generator).bfloat16()
    out = Linear(weight, bias)(x)
    assert out.dtype is torch.bfloat16
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    # Half a unit in the last place of bfloat16 (8 bits), and float32's own rounding.
    torch.testing.assert_close(out.double(), exact, rtol=2**-8, atol=1e-4)


def test_packing_is_for_cpus_only() -> None:
    assert not can_pack(torch.device("meta"), torch.float32)


def test_prompts_of_all_lengths_need_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN keeps one for every number of rows it ever saw."""
    seen: set[int] = set()
    layer = Linear(torch.randn(8, 8))
    packed = torch.ops.mkldnn._linear_pointwise

    class Counted:
        @staticmethod
        def _linear_pointwise(x: torch.Tensor, *rest: object) -> torch.Tensor:
            seen.add(x.shape[0])
            out: torch.Tensor = packed(x, *rest)
            return out

    if not can_pack(torch.device("cpu"), torch.float32):
        pytest.skip("this PyTorch packs nothing")
    monkeypatch.setattr(torch.ops, "mkldnn", Counted)
    for num_rows in range(1, 257):
        assert layer(torch.randn(num_rows, 8)).shape == (num_rows, 8)
    assert len(seen) == 32 + 7


def test_the_sizes_that_products_are_computed_for() -> None:
    cpu = torch.device("cpu")
    if can_pack(cpu, torch.float32):
        assert computed_sizes(65, cpu, torch.float32) == (*range(1, 33), 64, 96)
        assert computed_sizes(64, cpu, torch.bfloat16)[-1] == 64
    assert computed_sizes(65, torch.device("cuda"), torch.float32) == ()

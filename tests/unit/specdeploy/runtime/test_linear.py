"""Packed products against plain ones."""

import pytest
import torch
import torch.nn.functional as F

from specdeploy.runtime.linear import Linear, can_pack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_rows", [0, 1, 5, 64])
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


def test_packing_is_for_cpus_only() -> None:
    assert not can_pack(torch.device("meta"), torch.float32)

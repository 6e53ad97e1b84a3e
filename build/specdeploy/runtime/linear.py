"""Linear layers whose weights are packed once.

oneDNN wants weights in its own blocked layout and otherwise reorders them at every call; at decode sizes (1-64 rows)
that reorder is a large part of the step. `torch.compile` freezes weights the same way with the two operators used
here. They are private to PyTorch, so packing is used only where it is present and gives the plain product, and the
plain product otherwise.

A processor without bfloat16 products (no AVX-512) gets oneDNN's reference code for them, nine times slower at prompt
sizes than float32. There a bfloat16 layer keeps its weights in float32 and rounds the product: the same sums of the
same numbers, twice the memory.

oneDNN makes a kernel for every new number of rows and keeps it: with prompts of all lengths memory would go on growing.
More rows than a decode step has are therefore padded to a multiple.
"""

import torch
import torch.nn.functional as F

_PROBE_ROWS = 3
# Up to here every number of rows has its own kernel, beyond it only multiples have.
_EXACT_ROWS, _ROW_MULTIPLE = 32, 32


class Linear:
    """y = x W^T + b with `weight` [out, in] and optional `bias` [out]. Keeps the packed weight or the plain one."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._dtype = weight.dtype
        if weight.dtype is torch.bfloat16 and weight.device.type == "cpu" and not has_bfloat16_products():
            weight, bias = weight.float(), None if bias is None else bias.float()
        self._compute_dtype = weight.dtype
        self._bias = bias
        self._is_packed = can_pack(weight.device, weight.dtype)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._is_packed else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, in] -> [N, out], both in the dtype of the weight that was given."""
        x = x.to(self._compute_dtype)
        out = self._packed(x) if self._is_packed else F.linear(x, self._weight, self._bias)
        return out.to(self._dtype)

    def _packed(self, x: torch.Tensor) -> torch.Tensor:
        num_rows = x.shape[0]
        is_padded = num_rows > _EXACT_ROWS and num_rows % _ROW_MULTIPLE != 0
        if is_padded:
            x = F.pad(x, (0, 0, 0, -num_rows % _ROW_MULTIPLE))
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out[:num_rows] if is_padded else out


def computed_sizes(most: int, device: torch.device, dtype: torch.dtype) -> tuple[int, ...]:
    """Numbers of rows that products are computed for, rising, up to the first that holds `most`; () where every number
    is its own."""
    if not can_pack(device, dtype if dtype is not torch.bfloat16 or has_bfloat16_products() else torch.float32):
        return ()
    return (*range(1, _EXACT_ROWS + 1), *range(_EXACT_ROWS + _ROW_MULTIPLE, most + _ROW_MULTIPLE, _ROW_MULTIPLE))


def has_bfloat16_products() -> bool:
    """Whether oneDNN multiplies bfloat16 on this processor by more than its reference code. True where it cannot say:
    then nothing is changed."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return True


_can_pack_cache: dict[tuple[str, torch.dtype], bool] = {}


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed products exist on this device and agree with plain ones for this dtype (probed once)."""
    key = (device.type, dtype)
    if key not in _can_pack_cache:
        _can_pack_cache[key] = device.type == "cpu" and _probe(dtype)
    return _can_pack_cache[key]


def _probe(dtype: torch.dtype) -> bool:
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 32, generator=generator).to(dtype)
    x = torch.randn(_PROBE_ROWS, 32, generator=generator).to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        out = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return False  # another PyTorch or processor: the plain product is always right
    tolerance = 1e-4 if dtype is torch.float32 else 0.25
    return torch.allclose(out.float(), F.linear(x, weight).float(), atol=tolerance)

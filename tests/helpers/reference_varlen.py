"""What `torch.nn.attention.varlen.varlen_attn` is documented to do with pages, written out: its kernels need a GPU."""

import torch


def varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
) -> torch.Tensor:
    """query [T_q, Q, D]; key, value [pages, page size, KV, D]; bottom-right causal for the window (-1, 0)."""
    assert enable_gqa
    assert window_size in ((-1, 0), (-1, -1))
    for numbers in (cu_seq_q, cu_seq_k, seqused_k, block_table):
        assert numbers is not None
        assert numbers.dtype is torch.int32
        assert numbers.is_contiguous()
    assert key.shape[1] % 256 == 0
    assert 0 <= int(block_table.min()) <= int(block_table.max()) < len(key)
    out = torch.empty_like(query)
    for row, used in enumerate(seqused_k.tolist()):
        first, last = int(cu_seq_q[row]), int(cu_seq_q[row + 1])
        assert last - first <= max_q
        assert used <= max_k
        pages = block_table[row, : -(-used // key.shape[1])].long()
        keys, values = (pool[pages].flatten(0, 1)[:used] for pool in (key, value))  # [used, KV, D]
        group = query.shape[1] // key.shape[2]
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query[first:last], keys) / query.shape[2] ** 0.5
        if window_size == (-1, 0):
            scores += torch.full(scores.shape[1:], float("-inf")).triu_(used - (last - first) + 1)
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out

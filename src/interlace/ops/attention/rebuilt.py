"""Attention of many queries against the latent: keys and values rebuilt block by block, never kept.

    for each block of latents c:
        k = (W_UK c, shared key), v = W_UV c           in the dtype of the latent, one block only
        for each block of queries:  s = q k^T, online softmax in float32, o <- o e^(m - m') + p v

Cheaper than the absorbed form when many queries share the rebuilding (README). For inference: no
backward. Rows of unequal length are taken one by one, each cut to its own length.
"""

import torch

from interlace.ops.attention.layout import accumulation_dtype, check_latent, row_lengths
from interlace.shapes import Float, Int, Tensor

__all__ = ["attention_rebuilt"]

LATENT_BLOCK = 512
QUERY_BLOCK = 256


def attention_rebuilt(
    q: Float[Tensor, "B T H K"],
    latent: Float[Tensor, "B M latent"],
    w_uk: Float[Tensor, "H N R"],
    w_uv: Float[Tensor, "H V R"],
    *,
    lengths: Int[Tensor, "B"] | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Float[Tensor, "B T H V"] | tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """Causal attention with keys and values rebuilt from the latent in blocks (spec section 4).

    Keys, values and products have the dtype of q; softmax, sums and output are float32 (float64 for
    a float64 q). Not differentiable in use: meant for inference.

    Arguments and errors as for `attention_absorbed`.
    """
    check_latent(q, latent, w_uk, w_uv, lengths)
    batch, _, _, width = q.shape
    with torch.no_grad():
        heads_first = q.transpose(1, 2).contiguous()  # [B, H, T, N + P]
        ends = row_lengths(lengths, batch, latent.shape[1])
        up = torch.cat([w_uk, w_uv], 1).to(q.dtype)  # [H, N + V, R]
        factor = width**-0.5 if scale is None else scale
        nope = w_uk.shape[1]
        if len(set(ends)) <= 1:
            o, lse = _fold(heads_first, latent, up, ends[0] if ends else 0, factor, nope)
        else:
            rows = [
                _fold(heads_first[b : b + 1], latent[b : b + 1], up, end, factor, nope)
                for b, end in enumerate(ends)
            ]
            o, lse = (torch.cat(parts) for parts in zip(*rows, strict=True))
    o, lse = o.transpose(1, 2), lse.squeeze(-1).transpose(1, 2)
    return (o, lse) if return_lse else o


def _fold(
    q: Tensor, latent: Tensor, up: Tensor, end: int, scale: float, nope: int
) -> tuple[Tensor, Tensor]:
    """Online softmax of `[B, H, T, N + P]` over the keys and values of `latent[:, :end]`."""
    batch, heads, tokens, _ = q.shape
    rank = up.shape[-1]
    dtype = accumulation_dtype(q.dtype)
    top = torch.full((batch, heads, tokens, 1), float("-inf"), dtype=dtype, device=q.device)
    total = torch.zeros_like(top)
    o = torch.zeros(batch, heads, tokens, up.shape[1] - nope, dtype=dtype, device=q.device)
    first = end - tokens
    # one block, used again: new memory is slower than what is done with it
    size = min(LATENT_BLOCK, max(end, 1))
    latents = q.new_empty(batch, size, latent.shape[-1])
    rebuilt = q.new_empty(batch * size, heads * up.shape[1])
    keys = q.new_empty(batch, heads, size, q.shape[-1])
    values = q.new_empty(batch, heads, size, o.shape[-1])
    for begin in range(0, end, size):
        stop = min(begin + size, end)
        count = stop - begin
        c = latents[:, :count].copy_(latent[:, begin:stop])
        # all heads in one product, then heads first
        kv = torch.mm(
            c[..., :rank].reshape(-1, rank), up.flatten(0, 1).mT, out=rebuilt[: batch * count]
        )
        kv = kv.view(batch, count, heads, up.shape[1]).transpose(1, 2)  # [B, H, block, N + V]
        k, v = keys[:, :, :count], values[:, :, :count]
        k[..., :nope] = kv[..., :nope]
        k[..., nope:] = c[:, None, :, rank:]
        v.copy_(kv[..., nope:])
        column = torch.arange(begin, stop, device=q.device)
        for t in range(0, tokens, QUERY_BLOCK):
            last = min(t + QUERY_BLOCK, tokens)
            if first + last - 1 < begin:
                continue
            rows = slice(t, last)
            s = (q[:, :, rows] @ k.mT).to(dtype).mul_(scale)  # [B, H, T, block]
            if stop - 1 > first + t:
                position = torch.arange(first + t, first + last, device=q.device)[:, None]
                s.masked_fill_(column > position, float("-inf"))
            new = torch.maximum(top[:, :, rows], s.amax(-1, keepdim=True))
            # a query that has seen nothing yet has new = -inf: subtract 0 then, not -inf from -inf
            base = new.masked_fill(new == float("-inf"), 0.0)
            p = s.sub_(base).exp_()
            keep = (top[:, :, rows] - base).exp_()
            total[:, :, rows] = total[:, :, rows] * keep + p.sum(-1, keepdim=True)
            o[:, :, rows] = o[:, :, rows] * keep + p.to(q.dtype) @ v
            top[:, :, rows] = new
    lse = total.log() + top.masked_fill(top == float("-inf"), 0.0)
    return o.div_(total.masked_fill(total == 0, 1.0)), lse

"""Attention of few queries against the latent itself: no key is expanded.

    q~ = (W_UK^T q_nope, q_shared)          [B, T*H, R + P], once per call
    for each block of latents c:            online softmax, float32
        s = q~ c^T;  o~ <- o~ e^(m - m') + e^(s - m') c[:R]
    o = W_UV o~ / sum                       [B, T, H, V]

Everything is multiplied in float32: bf16 scores lose the bits that a softmax needs (half a unit at
80 is 0.25), and torch has no bf16 product with a float32 result on the CPU. Each block of latents,
and a few heads of the weights at a time, are converted into one buffer that is used again: memory
does not grow with depth, and new memory is slower than the conversion. For inference: no backward.
Rows of unequal length are taken one by one, each cut to its own length, so that what lies behind is
never read.
"""

import torch

from interlace.ops.attention.layout import accumulation_dtype, check_latent, row_lengths
from interlace.shapes import Float, Int, Tensor

__all__ = ["attention_absorbed"]

# A block in float32 (1.1 MiB at 576 channels) and its scores stay in a core's cache (README).
LATENT_BLOCK = 512
SMALLEST_BLOCK = 128
SCORE_ELEMENTS = 1 << 18
# Heads of the up-projections converted at a time: 1 MiB at 128 x 512.
HEAD_BLOCK = 4


def attention_absorbed(
    q: Float[Tensor, "B T H K"],
    latent: Float[Tensor, "B M latent"],
    w_uk: Float[Tensor, "H N R"],
    w_uv: Float[Tensor, "H V R"],
    *,
    lengths: Int[Tensor, "B"] | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Float[Tensor, "B T H V"] | tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """Causal attention with W_UK folded into the query and W_UV into the output (spec section 4).

    Products, softmax and output are float32 (float64 for a float64 q). Not differentiable in use:
    meant for inference.

    Args:
        q: queries, nope and shared part side by side (width N + P); P may be 0.
        latent: normed latent, then the shared key; what lies behind a row's length is not read.
        w_uk: from the latent to each head's nope key.
        w_uv: from the latent to each head's value.
        lengths: valid latents per row, this call's T included: the queries of row b stand at
            lengths[b]-T .. lengths[b]-1. A query before position 0 sees nothing. M by default.
        scale: multiplies the scores; (N + P)**-0.5 when not given.
        return_lse: also return the log-sum-exp of the scaled scores, float32; -inf where a query
            sees nothing (the output is 0 there).

    Raises:
        ShapeError: when the shapes do not fit together.
    """
    check_latent(q, latent, w_uk, w_uv, lengths)
    batch, tokens, heads, width = q.shape
    nope, rank = w_uk.shape[1:]
    dtype = accumulation_dtype(q.dtype)
    with torch.no_grad():
        # heads first: [H, B*T, N + P]
        wide = q.to(dtype).flatten(0, 1).transpose(0, 1)
        folded = torch.cat([_per_head(wide[..., :nope], w_uk), wide[..., nope:]], -1)
        folded.mul_(width**-0.5 if scale is None else scale)
        depth = folded.shape[-1]
        folded = folded.transpose(0, 1).reshape(batch, tokens * heads, depth)  # [B, T*H, R + P]
        ends = row_lengths(lengths, batch, latent.shape[1])
        if len(set(ends)) <= 1:
            summed, lse = _fold(folded, latent, ends[0] if ends else 0, tokens, rank)
        else:
            rows = [
                _fold(folded[b : b + 1], latent[b : b + 1], end, tokens, rank)
                for b, end in enumerate(ends)
            ]
            summed, lse = (torch.cat(parts) for parts in zip(*rows, strict=True))
        summed = summed.view(batch * tokens, heads, rank).transpose(0, 1)
        o = _per_head(summed, w_uv, transposed=True)  # [H, B*T, V]
        o = o.transpose(0, 1).reshape(batch, tokens, heads, w_uv.shape[1])
    return (o, lse.view(batch, tokens, heads)) if return_lse else o


def _per_head(x: Tensor, weight: Tensor, transposed: bool = False) -> Tensor:
    """`x[h] @ weight[h]` (or its transpose) for every head, in the dtype of x."""
    heads = x.shape[0]
    out = x.new_empty(*x.shape[:2], weight.shape[1 if transposed else 2])
    buffer = x.new_empty(min(HEAD_BLOCK, heads), *weight.shape[1:])
    for begin in range(0, heads, HEAD_BLOCK):
        some = slice(begin, min(begin + HEAD_BLOCK, heads))
        w = buffer[: some.stop - begin].copy_(weight[some])
        torch.bmm(x[some], w.mT if transposed else w, out=out[some])
    return out


def _fold(q: Tensor, latent: Tensor, end: int, tokens: int, rank: int) -> tuple[Tensor, Tensor]:
    """Online softmax of `[B, T*H, R + P]` over `latent[:, :end]`; `[B, T*H, R]` and LSE."""
    batch, queries, width = q.shape
    # the lowest number, not -inf: a query that has seen nothing subtracts it without making NaN
    top = q.new_full((batch, queries, 1), torch.finfo(q.dtype).min)
    new, total = torch.empty_like(top), torch.zeros_like(top)
    summed = q.new_zeros(batch, queries, rank)
    first = end - tokens
    position = torch.arange(first, end, device=q.device).repeat_interleave(
        queries // max(1, tokens)
    )
    size = _block_size(batch, queries, end)
    buffer, scores = q.new_empty(batch, size, width), q.new_empty(batch, queries, size)
    for begin in range(0, end, size):
        stop = min(begin + size, end)
        c = buffer[:, : stop - begin].copy_(latent[:, begin:stop])
        s = torch.bmm(q, c.mT, out=scores[..., : stop - begin])
        if stop - 1 > first:
            column = torch.arange(begin, stop, device=q.device)
            s.masked_fill_(column > position[:, None], float("-inf"))
        torch.amax(s, -1, keepdim=True, out=new)
        torch.maximum(new, top, out=new)
        p = s.sub_(new).exp_()
        keep = top.sub_(new).exp_()
        total.mul_(keep).add_(p.sum(-1, keepdim=True))
        summed.mul_(keep).baddbmm_(p, c[..., :rank])
        top, new = new, top
    lse = total.log() + top
    return summed.div_(total.masked_fill(total == 0, 1.0)), lse


def _block_size(batch: int, queries: int, end: int) -> int:
    """Latents of one block: few enough for the cache, enough for a product to be efficient."""
    rows = max(1, batch)
    size = min(LATENT_BLOCK // rows, SCORE_ELEMENTS // (rows * max(1, queries)))
    return min(max(size, min(SMALLEST_BLOCK, LATENT_BLOCK)), max(end, 1))

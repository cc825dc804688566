"""Attention of few queries against the latent itself: no key is expanded.

    q~ = (W_UK^T q_nope, q_shared)          [B, T*H, R + P], once per call
    for each block of latents c:            online softmax, float32
        s = q~ c^T;  o~ <- o~ e^(m - m') + e^(s - m') c[:R]
    o = W_UV o~ / sum                       [B, T, H, V]

Blocks are brought to float32 before the products: bf16 scores lose the bits that a softmax needs
(half a unit at 80 is 0.25). Memory does not grow with depth. For inference: no backward. Rows of
unequal length are taken one by one, each cut to its own length, so that what lies behind is never
read.
"""

import torch

from interlace.ops.attention.layout import accumulation_dtype, check_latent, row_lengths
from interlace.shapes import Float, Int, Tensor

__all__ = ["attention_absorbed"]

LATENT_BLOCK = 2048
# Scores of one block over all queries and heads: 8 MiB of float32.
SCORE_ELEMENTS = 1 << 21


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
        wide = q.to(dtype)
        folded = torch.einsum("bthn,hnr->bthr", wide[..., :nope], w_uk.to(dtype))
        folded = torch.cat([folded, wide[..., nope:]], -1)
        folded.mul_(width**-0.5 if scale is None else scale)
        folded = folded.flatten(1, 2)  # [B, T*H, R + P]
        ends = row_lengths(lengths, batch, latent.shape[1])
        if len(set(ends)) <= 1:
            summed, lse = _fold(folded, latent, ends[0] if ends else 0, tokens, rank)
        else:
            rows = [
                _fold(folded[b : b + 1], latent[b : b + 1], end, tokens, rank)
                for b, end in enumerate(ends)
            ]
            summed, lse = (torch.cat(parts) for parts in zip(*rows, strict=True))
        summed = summed.view(batch, tokens, heads, rank)
        o = torch.einsum("bthr,hvr->bthv", summed, w_uv.to(dtype))
    return (o, lse.view(batch, tokens, heads)) if return_lse else o


def _fold(q: Tensor, latent: Tensor, end: int, tokens: int, rank: int) -> tuple[Tensor, Tensor]:
    """Online softmax of `[B, T*H, R + P]` over `latent[:, :end]`; `[B, T*H, R]` and LSE."""
    batch, queries, width = q.shape
    top = torch.full((batch, queries, 1), float("-inf"), dtype=q.dtype, device=q.device)
    total = torch.zeros_like(top)
    summed = torch.zeros(batch, queries, rank, dtype=q.dtype, device=q.device)
    size = max(32, min(LATENT_BLOCK, SCORE_ELEMENTS // max(1, batch * queries)))
    first = end - tokens
    position = torch.arange(first, end, device=q.device).repeat_interleave(
        queries // max(1, tokens)
    )
    buffer = torch.zeros(batch, min(size, max(end, 0)), width, dtype=q.dtype, device=q.device)
    for begin in range(0, end, size):
        stop = min(begin + size, end)
        c = buffer[:, : stop - begin].copy_(latent[:, begin:stop])
        s = q @ c.mT  # [B, T*H, block]
        if stop - 1 > first:
            s.masked_fill_(
                torch.arange(begin, stop, device=q.device) > position[:, None], float("-inf")
            )
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        # a query that has seen nothing yet has new = -inf: subtract 0 then, not -inf from -inf
        base = new.masked_fill(new == float("-inf"), 0.0)
        p = s.sub_(base).exp_()
        keep = (top - base).exp_()
        total.mul_(keep).add_(p.sum(-1, keepdim=True))
        summed.mul_(keep)
        summed.baddbmm_(p, c[..., :rank])
        top = new
    lse = total.log() + top.masked_fill(top == float("-inf"), 0.0)
    return summed.div_(total.masked_fill(total == 0, 1.0)), lse

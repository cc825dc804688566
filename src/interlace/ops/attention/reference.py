"""Causal attention in the order of the spec: scores, mask, softmax, sum. Stores every score.

The queries are the last T of M positions: query t sees key j when j <= M - T + t. Differentiable by
plain autograd; the yardstick of the other files in this folder, in float64 where it matters.
"""

import torch

from interlace.ops.attention.layout import check_expanded, segment_starts
from interlace.shapes import Float, Int, Tensor

__all__ = ["attention_reference"]


def attention_reference(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B M H K"],
    v: Float[Tensor, "B M H V"],
    *,
    scale: float | None = None,
    lengths: Int[Tensor, "B"] | None = None,
    cu_seqlens: Int[Tensor, "offsets"] | None = None,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B T H V"]:
    """Attend, step by step (spec section 4, steps 5 and 6; the sum in K3 report equation (7)).

    Args:
        q: queries, nope and shared part side by side (width N + P).
        k: keys of the same width.
        v: values, of any width.
        scale: multiplies the scores; (N + P)**-0.5 when not given.
        lengths: real tokens of each right-padded row (T == M); the others get 0.
        cu_seqlens: offsets of packed sequences in the rows laid end to end (T == M).
        compute_dtype: of every step and of the result.

    Raises:
        ShapeError: when the shapes do not fit together.
    """
    check_expanded(q, k, v, lengths, cu_seqlens)
    tokens, memory = q.shape[1], k.shape[1]
    q, k, v = (x.to(compute_dtype) for x in (q, k, v))
    real = None
    if lengths is not None:
        real = (torch.arange(tokens, device=q.device) < lengths[:, None])[..., None, None]
        q, k, v = (torch.where(real, x, 0.0) for x in (q, k, v))
    scores = torch.einsum("bthk,bmhk->bhtm", q, k) * (
        q.shape[-1] ** -0.5 if scale is None else scale
    )
    row = torch.arange(memory - tokens, memory, device=q.device)[:, None]
    column = torch.arange(memory, device=q.device)
    hidden = column > row
    if cu_seqlens is not None:
        starts = torch.tensor(segment_starts(cu_seqlens, q.shape[0], tokens), device=q.device)
        hidden = (hidden | (column < starts[..., None]))[:, None]
    p = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    o = torch.einsum("bhtm,bmhv->bthv", p, v)
    return o if real is None else torch.where(real, o, 0.0)

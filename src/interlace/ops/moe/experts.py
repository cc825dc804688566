"""The weighted sum of the chosen experts: one run of each expert that received a token.

    indices [T, k] -> sorted by expert -> for each expert with tokens: its rows, the expert
                   -> times weight -> added to the rows in float32, experts in ascending order

Which experts ran, and in which order their results are added, is thus the same for every call with
the same choice; a token's sum has the order of its expert indices. An expert is a function of its
number and its rows, so that nothing here knows how its weights are kept.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn.functional import linear

from interlace.errors import ShapeError
from interlace.ops.mlp import swiglu
from interlace.shapes import Float, Int, Tensor

__all__ = ["dispatch", "moe_experts"]

Glu = Callable[[Tensor, Tensor], Tensor]
Expert = Callable[[int, Tensor], Tensor]


def dispatch(
    x: Float[Tensor, "T D"],
    indices: Int[Tensor, "T chosen"],
    weights: Float[Tensor, "T chosen"],
    expert: Expert,
) -> Float[Tensor, "T D"]:
    """Sum over the chosen e of weights_e * expert(e, x) for every row of `x`.

    Args:
        x: rows.
        indices: chosen experts, from `route`; the experts of one row differ.
        weights: of each choice, float32.
        expert: number and rows `[tokens, D]` to output `[tokens, D]`; called once for each expert
            that has a token, in ascending order.

    Returns:
        Dtype of `x`; accumulated in float32 (spec sections 7.2 and 7.3).

    Raises:
        ShapeError: indices, weights and rows that do not belong together.
    """
    if indices.shape != weights.shape or indices.shape[:1] != x.shape[:1]:
        raise ShapeError(
            f"indices and weights must be [T, chosen] with T = {x.shape[0]} rows of x, got "
            f"{tuple(indices.shape)} and {tuple(weights.shape)}; pass what route returned for x"
        )
    wide = torch.promote_types(x.dtype, torch.float32)
    chosen = indices.flatten()  # [T * chosen]
    order = chosen.argsort(stable=True)
    rows = order // indices.shape[1]
    share = weights.flatten().index_select(0, order).to(wide)[:, None]
    out = x.new_zeros(x.shape, dtype=wide)
    for e, mine, tokens, weight in _parts(x, chosen.index_select(0, order), rows, share):
        # in place: a copy of the sum for each expert would cost more than the experts
        out.index_add_(0, mine, expert(e, tokens).to(wide) * weight)
    return out.to(x.dtype)


def _parts(
    x: Tensor, chosen: Tensor, rows: Tensor, share: Tensor
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Number, rows, tokens and weights of each expert that has any, from sorted choices."""
    numbers, counts = torch.unique_consecutive(chosen, return_counts=True)
    sizes = counts.tolist()
    if torch.is_grad_enabled() and x.requires_grad:
        # gathered once: the gradient of every gather is as large as x
        tokens = x.index_select(0, rows).split(sizes)
    else:
        tokens = (x.index_select(0, mine) for mine in rows.split(sizes))
    yield from zip(numbers.tolist(), rows.split(sizes), tokens, share.split(sizes), strict=True)


def moe_experts(
    x: Float[Tensor, "T D"],
    indices: Int[Tensor, "T chosen"],
    weights: Float[Tensor, "T chosen"],
    w1: Sequence[Tensor] | Float[Tensor, "E F D"],
    w2: Sequence[Tensor] | Float[Tensor, "E D F"],
    w3: Sequence[Tensor] | Float[Tensor, "E F D"],
    *,
    glu: Glu = swiglu,
) -> Float[Tensor, "T D"]:
    """Sum over the chosen e of weights_e * w2_e( glu(w1_e x, w3_e x) ) for every row of `x`.

    Args:
        x: rows, dtype of the experts.
        indices: chosen experts, from `route`.
        weights: of each choice, float32.
        w1: gate matrices [F, D], one per expert, or stacked.
        w2: down matrices [D, F].
        w3: up matrices [F, D].
        glu: what stands between the products.

    Returns:
        Dtype of `x`; accumulated in float32 (spec sections 7.2 and 7.3).

    Raises:
        ShapeError: three lists of different length, or rows that do not fit the choices.
    """
    gate, down, up = (w.unbind(0) if isinstance(w, Tensor) else w for w in (w1, w2, w3))
    if not len(gate) == len(down) == len(up):
        raise ShapeError(
            f"w1, w2 and w3 must hold one matrix per expert; got {len(gate)}, {len(down)} and "
            f"{len(up)}; pass the three of every expert"
        )

    def expert(e: int, tokens: Tensor) -> Tensor:
        return linear(glu(linear(tokens, gate[e]), linear(tokens, up[e])), down[e])

    return dispatch(x, indices, weights, expert)

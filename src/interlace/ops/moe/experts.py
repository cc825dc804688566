"""The weighted sum of the chosen experts: a loop over those that received a token.

    indices [T, k] -> sorted by expert -> for each expert with tokens: gather, two products, GLU,
    one product, times weight -> added to the rows in float32, experts in ascending order

Which experts ran, and in which order their results are added, is thus the same for every call with
the same choice; a token's sum has the order of its expert indices.
"""

from collections.abc import Callable, Sequence

import torch
from torch.nn.functional import linear

from interlace.errors import ShapeError
from interlace.ops.mlp import swiglu
from interlace.shapes import Float, Int, Tensor

__all__ = ["moe_experts"]

Glu = Callable[[Tensor, Tensor], Tensor]


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
        ShapeError: three lists of different length.
    """
    gate, down, up = (w.unbind(0) if isinstance(w, Tensor) else w for w in (w1, w2, w3))
    if not len(gate) == len(down) == len(up):
        raise ShapeError(
            f"w1, w2 and w3 must hold one matrix per expert; got {len(gate)}, {len(down)} and "
            f"{len(up)}; pass the three of every expert"
        )
    chosen = indices.flatten()  # [T * k]
    order = chosen.argsort(stable=True)
    rows = order // indices.shape[1]
    counts = torch.bincount(chosen, minlength=len(gate)).tolist()
    wide = torch.promote_types(x.dtype, torch.float32)
    share = weights.flatten().index_select(0, order).to(wide)[:, None]
    out = x.new_zeros(x.shape, dtype=wide)
    first = 0
    for e, count in enumerate(counts):
        if count == 0:
            continue
        mine = rows[first : first + count]
        tokens = x.index_select(0, mine)
        hidden = linear(glu(linear(tokens, gate[e]), linear(tokens, up[e])), down[e])
        out = out.index_add(0, mine, hidden.to(wide) * share[first : first + count])
        first += count
    return out.to(x.dtype)

"""Routing and experts token by token, in the order of the spec, usable in float64."""

from collections.abc import Callable, Sequence

import torch

from interlace.ops.mlp import swiglu_reference
from interlace.shapes import Float, Int, Tensor

__all__ = ["moe_experts_reference", "route_reference"]


def route_reference(
    x: Float[Tensor, "T D"],
    weight: Float[Tensor, "E D"],
    bias: Float[Tensor, "E"],
    *,
    top_k: int,
    num_groups: int = 1,
    topk_group: int = 1,
    renormalize: bool = True,
    scaling: float = 1.0,
    biased_weights: bool = False,
    compute_dtype: torch.dtype = torch.float32,
) -> tuple[Int[Tensor, "T chosen"], Float[Tensor, "T chosen"]]:
    """Routing (spec section 7.2), one token at a time; arguments and result as for `route`."""
    chosen, shares = [], []
    for token in x.to(compute_dtype):
        s = torch.sigmoid(weight.to(compute_dtype) @ token)
        c = s + bias.to(compute_dtype)
        allowed = c.detach().clone()
        if num_groups > topk_group:
            size = len(c) // num_groups
            groups = [allowed[i * size : (i + 1) * size] for i in range(num_groups)]
            score = [float(group.sort(descending=True).values[:2].sum()) for group in groups]
            ranked = sorted(range(num_groups), key=lambda i: -score[i])
            for i in ranked[topk_group:]:
                groups[i].fill_(float("-inf"))
        index = allowed.sort(descending=True, stable=True).indices[:top_k]
        w = (c if biased_weights else s)[index]
        if renormalize and top_k > 1:
            w = w / (w.sum() + 1e-20)
        chosen.append(index)
        shares.append(w * scaling)
    return torch.stack(chosen), torch.stack(shares)


def moe_experts_reference(
    x: Float[Tensor, "T D"],
    indices: Int[Tensor, "T chosen"],
    weights: Float[Tensor, "T chosen"],
    w1: Sequence[Tensor] | Float[Tensor, "E F D"],
    w2: Sequence[Tensor] | Float[Tensor, "E D F"],
    w3: Sequence[Tensor] | Float[Tensor, "E F D"],
    *,
    glu: Callable[..., Tensor] = swiglu_reference,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "T D"]:
    """Sum of w * w2( glu(w1 x, w3 x) ) over the chosen (spec section 7.3), token by token.

    `glu` is one of the references of `interlace.ops.mlp`; other arguments as for `moe_experts`.
    """
    rows = []
    for token, index, share in zip(x.to(compute_dtype), indices.tolist(), weights, strict=True):
        total = torch.zeros_like(token)
        for e, w in zip(index, share, strict=True):
            gate, down, up = (m[e].to(compute_dtype) for m in (w1, w2, w3))
            hidden = glu(gate @ token, up @ token, compute_dtype=compute_dtype)
            total = total + w.to(compute_dtype) * (down @ hidden)
        rows.append(total)
    return torch.stack(rows).to(x.dtype)

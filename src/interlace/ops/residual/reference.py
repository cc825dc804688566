"""Attention Residuals as they are written (spec section 6; K3 report, equations 8 to 10)."""

from collections.abc import Sequence

import torch

from interlace.errors import ShapeError
from interlace.shapes import Float, Tensor

__all__ = ["attention_residual_reference"]


def attention_residual_reference(
    bank: Sequence[Tensor],
    live: Float[Tensor, "*rows D"],
    norm: Float[Tensor, "D"],
    proj: Float[Tensor, "D"],
    eps: float,
    *,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*rows D"]:
    """The mixture of the candidates that one sublayer reads, token by token.

    Every candidate is scored by its direction alone, and the mixture is of the candidates as they
    are: neither normalised nor weighted.

    Args:
        bank: finished block streams `[*rows, D]`, oldest first; may be empty.
        live: the stream of the block at work, the last candidate.
        norm: weight of the read's norm.
        proj: weight of its projection to one number; there is no factor 1/sqrt(D).
        eps: added to the mean of the squares, inside the root.
        compute_dtype: of everything inside.

    Returns:
        Dtype of `live`.

    Raises:
        ShapeError: candidates of different shape.
    """
    for value in bank:
        if value.shape != live.shape:
            raise ShapeError(
                f"every candidate must have the shape of the live stream {tuple(live.shape)}, got "
                f"{tuple(value.shape)}; bank streams of the same tokens"
            )
    values = torch.stack([*bank, live]).to(compute_dtype)  # [candidates, *rows, D]
    keys = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    weight = norm.to(compute_dtype) * proj.to(compute_dtype)
    scores = (keys * weight).sum(-1)
    shares = scores.softmax(0)
    return (shares[..., None] * values).sum(0).to(live.dtype)

"""SwiGLU and SiTU-GLU as they are written (spec section 7.1), usable in float64."""

import torch

from interlace.shapes import Float, Tensor

__all__ = ["situ_glu_reference", "swiglu_reference"]


def swiglu_reference(
    gate: Float[Tensor, "*rows F"],
    up: Float[Tensor, "*rows F"],
    *,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*rows F"]:
    """silu(gate) * up, in the compute dtype, dtype of `gate` out."""
    wide = gate.to(compute_dtype)
    return (wide * torch.sigmoid(wide) * up.to(compute_dtype)).to(gate.dtype)


def situ_glu_reference(
    gate: Float[Tensor, "*rows F"],
    up: Float[Tensor, "*rows F"],
    beta: float | None = 4.0,
    linear_beta: float | None = 25.0,
    *,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*rows F"]:
    """[beta tanh(g / beta) sigmoid(g)] * [linear_beta tanh(u / linear_beta)].

    The sigmoid sees g uncapped.

    Source: spec section 7.1; K3 report, equation 12.
    """
    g, u = gate.to(compute_dtype), up.to(compute_dtype)
    cap = beta or 1.0
    capped = cap * torch.tanh(g / cap) * torch.sigmoid(g)
    if linear_beta is not None:
        u = linear_beta * torch.tanh(u / linear_beta)
    return (capped * u).to(gate.dtype)

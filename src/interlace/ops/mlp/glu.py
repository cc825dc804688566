"""SwiGLU and SiTU-GLU with gradients.

SwiGLU is left to automatic differentiation: its three backward passes are as few as there can be
without forming silu(gate) again, which costs more than it saves (README).
"""

import torch
from torch.nn.functional import silu

from interlace.ops.mlp.reference import situ_glu_reference
from interlace.shapes import Float, Tensor

__all__ = ["situ_glu", "swiglu"]


def swiglu(
    gate: Float[Tensor, "*rows F"], up: Float[Tensor, "*rows F"]
) -> Float[Tensor, "*rows F"]:
    """silu(gate) * up, in the dtype of the inputs, as the released code does (spec section 7.1)."""
    return silu(gate) * up


def situ_glu(
    gate: Float[Tensor, "*rows F"],
    up: Float[Tensor, "*rows F"],
    beta: float | None = 4.0,
    linear_beta: float | None = 25.0,
) -> Float[Tensor, "*rows F"]:
    """SiTU-GLU: a SwiGLU whose two branches saturate, in float32, dtype of `gate` out.

    Args:
        gate: any float dtype.
        up: any float dtype.
        beta: cap of the gate branch; None or 0 means 1, as in the released code.
        linear_beta: cap of the up branch; None leaves it as it is.

    Source: spec section 7.1; K3 report, equation 12.
    """
    wide = torch.promote_types(gate.dtype, torch.float32)
    return situ_glu_reference(gate, up, beta, linear_beta, compute_dtype=wide)

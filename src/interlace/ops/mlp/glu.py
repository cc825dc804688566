"""SwiGLU and SiTU-GLU with gradients."""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from interlace.ops.mlp.reference import situ_glu_reference
from interlace.shapes import Float, Tensor

__all__ = ["situ_glu", "swiglu"]


def swiglu(
    gate: Float[Tensor, "*rows F"], up: Float[Tensor, "*rows F"]
) -> Float[Tensor, "*rows F"]:
    """silu(gate) * up, in the dtype of the inputs, as the released code does (spec section 7.1)."""
    return _SwiGLU.apply(gate, up)  # type: ignore[no-any-return]


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


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gate, up = ctx.saved_tensors
        dgate = dup = None
        if ctx.needs_input_grad[1]:
            dup = torch.nn.functional.silu(gate).mul_(dy)
        if ctx.needs_input_grad[0]:
            dgate = torch.ops.aten.silu_backward(dy * up, gate)
        return dgate, dup

"""SwiGLU and SiTU-GLU with gradients.

SwiGLU is left to automatic differentiation: its three backward passes are as few as there can be
without forming silu(gate) again, which costs more than it saves. SiTU-GLU has a backward of its
own, which keeps the gate and the two tanh and nothing else (README).
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

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
    return _SiTU.apply(gate, up, beta or 1.0, linear_beta)  # type: ignore[no-untyped-call]


class _SiTU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, cap: float, linear_cap: float | None) -> Tensor:
        wide = torch.promote_types(gate.dtype, torch.float32)
        g = gate.to(wide)
        bent = torch.tanh(g / cap)
        if linear_cap is None:
            kept, line = up, up.to(wide)
        else:
            kept = line = torch.tanh(up.to(wide) / linear_cap)
        ctx.save_for_backward(gate, bent, kept)
        ctx.cap, ctx.linear_cap, ctx.up_dtype = cap, linear_cap, up.dtype
        scale = cap * (1.0 if linear_cap is None else linear_cap)
        return torch.sigmoid(g).mul_(bent).mul_(line).mul_(scale).to(gate.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, bent, kept = ctx.saved_tensors
        wide = bent.dtype
        s, line = torch.sigmoid(gate.to(wide)), kept.to(wide)
        # dy times the gate branch but for tanh, and every constant
        common = dy.to(wide) * s
        common *= ctx.cap * (1.0 if ctx.linear_cap is None else ctx.linear_cap)
        dup = common * bent
        if ctx.linear_cap is not None:
            dup = dup.mul_(1 - line * line).div_(ctx.linear_cap)
        # d(tanh(g / cap) s) / dg, divided by s
        slope = torch.addcmul(bent, bent, s, value=-1).add_((1 - bent * bent).div_(ctx.cap))
        dgate = common.mul_(line).mul_(slope)
        return dgate.to(gate.dtype), dup.to(ctx.up_dtype), None, None

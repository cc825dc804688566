"""The three norms with a backward of their own, in as few passes over memory as torch allows.

An elementwise pass over a large tensor costs the time of its bytes, so that the number of passes is
the speed. Kept for the backward are the input and one number per row (the inverse root); the normed
values are formed again. float32 inside (float64 for float64 inputs).
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from interlace.errors import ShapeError
from interlace.shapes import Float, Tensor

__all__ = ["check_weight", "gated_rms_norm", "l2norm", "rms_norm"]


def rms_norm(
    x: Float[Tensor, "*rows D"], weight: Float[Tensor, "D"], eps: float
) -> Float[Tensor, "*rows D"]:
    """RMSNorm over the last axis: normalise in float32, cast back, then multiply by the weight.

    Args:
        x: any float dtype.
        weight: in its own dtype; the product follows torch's promotion.
        eps: added to the mean of the squares, inside the root.

    Returns:
        Dtype of `x` times dtype of `weight`: x's own where they agree.

    Source: spec section 3.
    """
    check_weight(x, weight)
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]


def gated_rms_norm(
    x: Float[Tensor, "*rows D"],
    gate: Float[Tensor, "*rows D"],
    weight: Float[Tensor, "D"],
    eps: float,
) -> Float[Tensor, "*rows D"]:
    """RMSNorm times weight times sigmoid(gate), all in float32, with one cast at the end.

    Args:
        x: output of the delta rule, per head; any float dtype.
        gate: before the sigmoid.
        weight: shared by all heads.
        eps: added to the mean of the squares, inside the root.

    Returns:
        Dtype of `gate`, which is that of the activations (`x` may come in float32).

    Source: spec section 5, step 9.
    """
    check_weight(x, weight)
    return _GatedRMSNorm.apply(x, gate, weight, eps)  # type: ignore[no-untyped-call]


def l2norm(x: Float[Tensor, "*rows D"], eps: float = 1e-6) -> Float[Tensor, "*rows D"]:
    """Scale the last axis to unit length: x / sqrt(sum(x^2) + eps), in float32, dtype of `x` out.

    Args:
        x: any float dtype.
        eps: added to the SUM of the squares, inside the root.

    Source: spec section 5, step 4.
    """
    return _L2Norm.apply(x, eps)  # type: ignore[no-untyped-call]


def check_weight(x: Tensor, weight: Tensor) -> None:
    """Refuse a weight that is not one number per column of `x`.

    Raises:
        ShapeError: both shapes.
    """
    if weight.ndim != 1 or weight.shape[0] != x.shape[-1]:
        raise ShapeError(
            f"weight must be [{x.shape[-1]}], the last axis of x {list(x.shape)}; got "
            f"{list(weight.shape)}; pass the weight of this norm"
        )


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _inverse_root(wide: Tensor, count: int, eps: float) -> Tensor:
    """1 / sqrt(sum(x^2) / count + eps) per row, with one pass over `wide`."""
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return norm.square_().div_(count).add_(eps).rsqrt_()


def _through_norm(grad: Tensor, normed: Tensor, inverse: Tensor, count: int) -> Tensor:
    """Gradient through the norm: inverse * (grad - normed * <normed, grad> / count).

    Overwrites `grad`.
    """
    along = (normed * grad).sum(-1, keepdim=True).div_(-count)
    return grad.addcmul_(normed, along).mul_(inverse)


def _over_rows(x: Tensor) -> Tensor:
    return x.flatten(0, -2).sum(0) if x.ndim > 1 else x


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _wide(x)
        inverse = _inverse_root(wide, x.shape[-1], eps)
        ctx.save_for_backward(x, weight, inverse)
        normed = wide * inverse
        if normed.dtype == x.dtype == weight.dtype:
            return normed.mul_(weight)
        return normed.to(x.dtype) * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse = ctx.saved_tensors
        dy = _wide(dy)
        normed = _wide(x) * inverse
        dx = dweight = None
        if ctx.needs_input_grad[1]:
            dweight = _over_rows(dy * normed).to(weight.dtype)
        if ctx.needs_input_grad[0]:
            dx = _through_norm(dy * _wide(weight), normed, inverse, x.shape[-1]).to(x.dtype)
        return dx, dweight, None


class _GatedRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _wide(x)
        inverse = _inverse_root(wide, x.shape[-1], eps)
        ctx.save_for_backward(x, gate, weight, inverse)
        out = torch.sigmoid(_wide(gate)).mul_(wide * inverse).mul_(_wide(weight))
        return out.to(gate.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, gate, weight, inverse = ctx.saved_tensors
        dy = _wide(dy)
        normed = _wide(x) * inverse
        opened = torch.sigmoid(_wide(gate))
        dx = dgate = dweight = None
        through = dy * opened  # gradient of normed * weight
        along_weight = through * normed
        if ctx.needs_input_grad[2]:
            dweight = _over_rows(along_weight).to(weight.dtype)
        if ctx.needs_input_grad[1]:
            # dy * normed * weight * s * (1 - s)
            dgate = (along_weight.mul_(_wide(weight)) * (1 - opened)).to(gate.dtype)
        if ctx.needs_input_grad[0]:
            through = through.mul_(_wide(weight))
            dx = _through_norm(through, normed, inverse, x.shape[-1]).to(x.dtype)
        return dx, dgate, dweight, None


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        wide = _wide(x)
        inverse = _inverse_root(wide, 1, eps)
        ctx.save_for_backward(x, inverse)
        return (wide * inverse).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, inverse = ctx.saved_tensors
        normed = _wide(x) * inverse
        along = (normed * dy).sum(-1, keepdim=True).neg_()
        return torch.addcmul(_wide(dy), normed, along).mul_(inverse).to(x.dtype), None

"""The three norms in the order of the spec, differentiable by plain autograd, usable in float64.

- `rms_norm`: x / sqrt(mean(x^2) + eps) in the compute dtype, back to the dtype of x, and only then
  times the weight (section 3).
- `gated_rms_norm`: the same times the weight, times sigmoid(gate), all in the compute dtype with
  one cast at the end (section 5, step 9).
- `l2norm`: x / sqrt(sum(x^2) + eps): the SUM, and eps inside the root (section 5, step 4).
"""

import torch

from interlace.shapes import Float, Tensor

__all__ = ["gated_rms_norm_reference", "l2norm_reference", "rms_norm_reference"]


def rms_norm_reference(
    x: Float[Tensor, "*rows D"],
    weight: Float[Tensor, "D"],
    eps: float,
    *,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*rows D"]:
    """RMSNorm (spec section 3); arguments and result as for `rms_norm`."""
    wide = x.to(compute_dtype)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return normed.to(x.dtype) * weight


def gated_rms_norm_reference(
    x: Float[Tensor, "*rows D"],
    gate: Float[Tensor, "*rows D"],
    weight: Float[Tensor, "D"],
    eps: float,
    *,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*rows D"]:
    """Gated RMSNorm (spec section 5, step 9); arguments and result as for `gated_rms_norm`."""
    wide = x.to(compute_dtype)
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out = normed * weight.to(compute_dtype) * torch.sigmoid(gate.to(compute_dtype))
    return out.to(gate.dtype)


def l2norm_reference(
    x: Float[Tensor, "*rows D"],
    eps: float = 1e-6,
    *,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*rows D"]:
    """Unit length (spec section 5, step 4); arguments and result as for `l2norm`."""
    wide = x.to(compute_dtype)
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)

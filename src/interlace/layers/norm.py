"""RMSNorm with its weight (spec section 3)."""

import torch
from torch import nn

from interlace.ops.norm import rms_norm
from interlace.shapes import Float, Tensor

__all__ = ["RMSNorm"]


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis; the result has the dtype of the weight.

    A residual stream that is wider than the weights (float32 beside bfloat16, as in training) is
    narrowed here, so that every product behind a norm runs in the dtype of the weights.

    Args:
        width: size of the normalised axis.
        eps: added to the mean of the squares, inside the root.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def extra_repr(self) -> str:
        """Size and epsilon, for `print(model)`."""
        return f"{self.weight.shape[0]}, eps={self.eps:g}"

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """Normalise `x`."""
        return rms_norm(x, self.weight, self.eps).to(self.weight.dtype)

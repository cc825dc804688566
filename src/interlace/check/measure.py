"""How far two results are apart, and how far they may be (docs/numerics.md)."""

import torch

from interlace.shapes import Tensor

__all__ = ["SLACK", "bound", "error"]

SLACK: dict[torch.dtype, float] = {
    torch.float64: 1e-10,
    torch.float32: 1e-6,
    torch.bfloat16: 4e-3,
    torch.float16: 4e-3,
}
"""What a way may add to twice the error of the plain way in the same precision."""


def error(got: Tensor, exact: Tensor) -> float:
    """The measure of the page: max |got - exact| / max(1, max |exact|).

    Infinite when `got` is not finite or has another shape.

    Args:
        got: what is judged.
        exact: the more exact side, of the same shape.
    """
    if got.shape != exact.shape:
        return float("inf")
    if got.numel() == 0:
        return 0.0
    a, b = got.detach().double(), exact.detach().double()
    if not bool(torch.isfinite(a).all()):
        return float("inf")
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))


def bound(plain: float, dtype: torch.dtype, factor: float = 2.0) -> float:
    """The error that is allowed in `dtype` where the plain way has the error `plain`."""
    return SLACK[dtype] if dtype == torch.float64 else factor * plain + SLACK[dtype]

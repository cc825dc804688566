"""The one comparison of the tests: max |a - b| / max(1, max |b|); messages name the worst index."""

import torch
from torch import Tensor

# What a low-precision way may add to twice the error of the plain way in the same precision.
SLACK = {torch.float64: 1e-10, torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 4e-3}


def error(got: Tensor, exact: Tensor) -> float:
    """max |got - exact| / max(1, max |exact|); infinity when got is not finite."""
    if got.numel() == 0:
        return 0.0
    a, b = got.detach().double(), exact.detach().double()
    assert a.shape == b.shape, f"shapes differ: {tuple(a.shape)} and {tuple(b.shape)}"
    if not bool(torch.isfinite(a).all()):
        return float("inf")
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))


def _worst(got: Tensor, exact: Tensor) -> str:
    difference = (got.detach().double() - exact.detach().double()).abs().nan_to_num(float("inf"))
    flat = int(difference.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), difference.shape))
    return f"worst at {index}: got {got[index].item():.8g}, want {exact[index].item():.8g}"


def assert_close(got: Tensor, exact: Tensor, tolerance: float, what: str = "result") -> None:
    """Assert that the error of `got` against `exact` is at most `tolerance`."""
    found = error(got, exact)
    assert found <= tolerance, f"{what}: error {found:.3g} > {tolerance:.3g}; {_worst(got, exact)}"


def assert_no_worse(
    got: Tensor, *, plain: Tensor, exact: Tensor, factor: float = 2.0, what: str = "result"
) -> None:
    """Assert that `got` is at most `factor` times as far from `exact` as `plain`, plus a slack."""
    bound = factor * error(plain, exact) + SLACK[got.dtype]
    assert_close(got, exact, bound, what)

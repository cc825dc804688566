"""x W^T, and rounding to int8 and int4 number by number, as design and README define them."""

import torch

from interlace.shapes import Float, Tensor

__all__ = ["linear_reference", "quantize_reference"]


def linear_reference(
    x: Float[Tensor, "*rows D"],
    weight: Float[Tensor, "F D"],
    *,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "*rows F"]:
    """Sum over d of x[d] W[f, d], in `compute_dtype`; dtype of `x` out."""
    return (x.to(compute_dtype) @ weight.to(compute_dtype).T).to(x.dtype)


def quantize_reference(
    weight: Float[Tensor, "F D"], bits: int, scale: Float[Tensor, "F groups"]
) -> Float[Tensor, "F D"]:
    """The nearest values that `bits` can hold with these scales, in float64."""
    low, high = (-127, 127) if bits == 8 else (-8, 7)
    rows = []
    for row, factors in zip(weight.double().tolist(), scale.double().tolist(), strict=True):
        values = []
        for i, x in enumerate(row):
            factor = factors[i // 32]
            code = min(range(low, high + 1), key=lambda c: abs(c * factor - x)) if factor else 0
            values.append(code * factor)
        rows.append(values)
    return torch.tensor(rows, dtype=torch.float64)

"""What reader and writer ask of a tensor: its dtype by name, its bytes, and if it is finite."""

import math

import torch

from interlace.errors import InputError
from interlace.shapes import Tensor

__all__ = ["FILE_DTYPES", "LOADED_DTYPES", "TORCH_DTYPES", "as_dtype", "is_finite", "raw_bytes"]

TORCH_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
"""The floating dtypes of weights, by the name that a header gives them."""

FILE_DTYPES = {**TORCH_DTYPES, "U8": torch.uint8}
"""With the bytes of packed weights: everything that a model can have in a file."""

LOADED_DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
"""The same by the name that a config gives them."""


def as_dtype(dtype: str | torch.dtype) -> tuple[str, torch.dtype]:
    """Name in a config and dtype of `dtype`, which may be given as either.

    Raises:
        InputError: a dtype that weights cannot have.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in LOADED_DTYPES:
        raise InputError(f"dtype must be one of {', '.join(LOADED_DTYPES)}, got {name!r}.")
    return name, LOADED_DTYPES[name]


def is_finite(value: Tensor) -> bool:
    """Whether no element is NaN or infinite, without a mask of the tensor's size."""
    if value.numel() == 0 or not value.is_floating_point():
        return True
    low, high = torch.aminmax(value)  # passes a NaN on
    return math.isfinite(low.item()) and math.isfinite(high.item())


def raw_bytes(value: Tensor) -> memoryview:
    """The memory of a flat, contiguous tensor on the CPU."""
    view: memoryview = value.view(torch.uint8).numpy().data
    return view

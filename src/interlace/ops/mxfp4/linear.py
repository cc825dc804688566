"""x W^T with W in MXFP4: from the codes in the native core, else expanded block by block."""

import torch

from interlace.ops.linear import Packed, linear
from interlace.ops.mxfp4.codes import check_packed, unpack
from interlace.shapes import Float, Tensor, UInt8

__all__ = ["expand", "mxfp4_linear"]


def mxfp4_linear(
    x: Float[Tensor, "*rows width"],
    packed: UInt8[Tensor, "out bytes"],
    scale: UInt8[Tensor, "out groups"],
    *,
    backend: str = "auto",
) -> Float[Tensor, "*rows out"]:
    """X W^T in the dtype of `x`, with a gradient for `x`.

    Args:
        x: rows.
        packed: uint8 codes of W [out, width].
        scale: uint8 scales of W.
        backend: as for `interlace.ops.linear.linear`.

    Raises:
        ShapeError: shapes or dtypes that do not belong together.
        BackendUnavailable: as `linear`.
    """
    check_packed(packed, scale)
    return linear(x, Packed(packed, scale), expand=expand, backend=backend)


def expand(packed: Packed, dtype: torch.dtype) -> Float[Tensor, "out width"]:
    """The weights themselves, exactly."""
    return unpack(*packed, dtype)

"""Packing, unpacking and rounding to MXFP4 (spec section 7.4).

    weight [out, width]  <->  packed [out, width / 2] bytes: element 2j low, 2j + 1 high
                              scale  [out, width / 32] bytes: 2^(byte - 127) for 32 elements

Every value is exact in bf16, so unpacking loses nothing in any dtype of weights.
"""

import torch

from interlace.errors import ShapeError
from interlace.shapes import Float, Int, Tensor, UInt8

__all__ = ["GROUP", "LARGEST_SCALE", "check_packed", "pack", "quantize", "scales", "unpack"]

GROUP = 32
"""Elements of a row that share a scale."""
LARGEST_SCALE = 252
"""Beyond it 6 * 2^(scale - 127) is no float32; 255 means NaN."""

_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# between neighbours; a tie goes to the even code, so every other boundary belongs to what is above
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


def unpack(
    packed: UInt8[Tensor, "out bytes"],
    scale: UInt8[Tensor, "out groups"],
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "out width"]:
    """The weights, exactly (float16 only where they fit).

    Args:
        packed: uint8 codes, two a byte.
        scale: uint8, one per 32 elements, at most `LARGEST_SCALE`.
        dtype: of the result.

    Raises:
        ShapeError: shapes or dtypes that do not belong together.
    """
    check_packed(packed, scale)
    values = torch.tensor([*_SIZES, *(-x for x in _SIZES)], dtype=dtype, device=packed.device)
    codes = torch.arange(256, device=packed.device)
    pairs = torch.stack([values[codes & 15], values[codes >> 4]], 1)  # [256, 2]
    wide = torch.nn.functional.embedding(packed.int(), pairs)  # [out, bytes, 2]
    grouped = wide.view(*scale.shape, GROUP)
    return grouped.mul_(scales(scale, dtype)[..., None]).view(packed.shape[0], -1)


def scales(scale: UInt8[Tensor, "out groups"], dtype: torch.dtype) -> Float[Tensor, "out groups"]:
    """2^(scale - 127)."""
    exponents = torch.arange(256, device=scale.device, dtype=torch.float64) - 127
    return torch.exp2(exponents).to(dtype)[scale.int()]


def pack(codes: Int[Tensor, "out width"]) -> UInt8[Tensor, "out bytes"]:
    """Codes 0..15 of an even number of elements per row, two a byte, the first in the low bits."""
    low, high = codes.to(torch.uint8).unflatten(1, (-1, 2)).unbind(2)
    return low | (high << 4)


def quantize(
    weight: Float[Tensor, "out width"],
) -> tuple[UInt8[Tensor, "out bytes"], UInt8[Tensor, "out groups"]]:
    """The nearest MXFP4 weights.

    The scale of a group is the power of two nearest to a quarter of its largest magnitude, rounded
    half up at a mantissa of 1.5 (not the floor of the OCP text).

    Args:
        weight: finite; a row is a multiple of 32 long.

    Returns:
        Codes and scales, uint8, as stored.

    Raises:
        ShapeError: rows that are no whole number of groups.
    """
    if weight.ndim != 2 or weight.shape[1] % GROUP or weight.shape[1] == 0:
        raise ShapeError(
            f"a weight to pack must be [out, width] with width a multiple of {GROUP}, got "
            f"{list(weight.shape)}; keep it unpacked."
        )
    groups = weight.double().unflatten(1, (-1, GROUP))
    mantissa, exponent = torch.frexp(groups.abs().amax(2) / 4)  # mantissa in 0.5..1
    exponent = torch.where(2 * mantissa < 1.5, exponent - 1, exponent)
    exponent = torch.where(mantissa == 0, 0, exponent).clamp(-127, LARGEST_SCALE - 127)
    scaled = groups * torch.exp2(-exponent.double())[..., None]
    middles = torch.tensor(_MIDDLES, dtype=torch.float64, device=weight.device)
    middles[1::2] = torch.nextafter(middles[1::2], middles.new_zeros(()))
    codes = torch.bucketize(scaled.abs(), middles) + 8 * torch.signbit(scaled)
    return pack(codes.flatten(1)), (exponent + 127).to(torch.uint8)


def check_packed(packed: Tensor, scale: Tensor) -> None:
    """Refuse codes and scales that do not belong together.

    Raises:
        ShapeError: names both shapes and dtypes.
    """
    fits = packed.ndim == scale.ndim == 2 and packed.shape[0] == scale.shape[0]
    fits = fits and packed.shape[1] * 2 == scale.shape[1] * GROUP
    if not fits or packed.dtype != torch.uint8 or scale.dtype != torch.uint8:
        raise ShapeError(
            "packed weights must be uint8 [out, width / 2] with scales [out, width / 32], got "
            f"{packed.dtype} {list(packed.shape)} and {scale.dtype} {list(scale.shape)}; pass the "
            "two tensors of one matrix."
        )

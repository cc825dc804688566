"""Weights in int8 and int4: symmetric, in groups of 32 along a row, one bf16 scale per group.

    int8  codes [out, width] int8, -127..127                          8.5 bits a weight
    int4  codes [out, width / 2] bytes of two, code + 8 in four bits  4.5 bits a weight
          (element 2j in the low half, 2j + 1 in the high half)
    scale [out, width / 32] bf16

MXFP4 lies in the same way with bytes for scales (`interlace.ops.mxfp4`).
"""

from typing import NamedTuple

import torch

from interlace.errors import InputError, ShapeError
from interlace.shapes import Float, Tensor

__all__ = ["BLOCK", "GROUP", "Packed", "check", "quantize", "unpack"]

GROUP = 32
"""Elements of a row that share a scale."""
BLOCK = 1 << 20
"""Elements that are expanded or rounded at a time: they stay in a cache on their way."""

# Of a scale that takes the largest element to the last code: a smaller one cuts it off and serves
# the other 31 better; the least squared error decides.
_INT4_SHARES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72)


class Packed(NamedTuple):
    """One matrix W [out, width] in codes; dtypes of the two tell which.

    Args:
        codes: int8 [out, width], or uint8 [out, width / 2].
        scale: [out, width / 32]: bf16, or uint8 for MXFP4.
    """

    codes: Tensor
    scale: Tensor

    @property
    def width(self) -> int:
        """Columns of W."""
        return self.codes.shape[1] * (1 if self.codes.dtype == torch.int8 else 2)


def quantize(weight: Float[Tensor, "out width"], bits: int) -> Packed:
    """Round `weight` to 8 or 4 bits.

    Raises:
        ShapeError: not a matrix whose rows are a multiple of 32.
        InputError: another number of bits, or a weight that is not finite.
    """
    if bits not in (4, 8):
        raise InputError(f"weights are rounded to 8 or 4 bits, got {bits}; choose one of them.")
    if weight.ndim != 2 or weight.shape[1] % GROUP:
        raise ShapeError(
            f"a weight to be rounded must be [out, width] with width a multiple of {GROUP}, got "
            f"{list(weight.shape)}; leave this one as it is."
        )
    rows = max(1, BLOCK // max(weight.shape[1], 1))
    parts = [_round(part, bits) for part in weight.detach().split(rows)]
    if not parts:
        parts = [_round(weight.detach(), bits)]
    return Packed(torch.cat([p.codes for p in parts]), torch.cat([p.scale for p in parts]))


def _round(weight: Tensor, bits: int) -> Packed:
    groups = weight.float().unflatten(1, (-1, GROUP))  # [out, groups, 32]
    if not bool(groups.isfinite().all()):
        raise InputError(
            "weights to be rounded must be finite, got infinity or NaN; check the checkpoint."
        )
    largest = groups.abs().amax(-1)
    if bits == 8:
        scale = (largest / 127).bfloat16()
        return Packed(_codes(groups, scale, 127, 127).flatten(1), scale)
    best = torch.full_like(largest, torch.inf)
    scale = torch.zeros_like(largest, dtype=torch.bfloat16)
    for share in _INT4_SHARES:
        tried = (largest * (share / 7)).bfloat16()
        got = _codes(groups, tried, 8, 7) * tried.float()[..., None]
        error = (got - groups).square().sum(-1)
        better = error < best
        best = torch.where(better, error, best)
        scale = torch.where(better, tried, scale)
    codes = (_codes(groups, scale, 8, 7).flatten(1) + 8).to(torch.uint8)
    return Packed(codes[:, 0::2] | (codes[:, 1::2] << 4), scale)


def _codes(groups: Tensor, scale: Tensor, low: int, high: int) -> Tensor:
    """The nearest codes -low..high of each group, int8."""
    wide = scale.float()[..., None]
    # a scale that rounds to zero has only zeros behind it
    steps = torch.where(wide > 0, groups / wide, 0.0)
    return steps.round_().clamp_(-low, high).to(torch.int8)


def unpack(packed: Packed, dtype: torch.dtype = torch.bfloat16) -> Float[Tensor, "out width"]:
    """The weights of int8 or int4 codes: code times scale, rounded once to `dtype`.

    Raises:
        ShapeError: codes and scale that do not belong together.
    """
    check(packed)
    codes, scale = packed
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if codes.dtype == torch.uint8:
        codes = torch.stack([codes & 15, codes >> 4], -1).flatten(1).to(torch.int8) - 8
    values = codes.to(wide).unflatten(1, (-1, GROUP)) * scale.to(wide)[..., None]
    return values.flatten(1).to(dtype)


def check(packed: Packed) -> None:
    """Refuse codes and scales of int8 or int4 that do not belong together.

    Raises:
        ShapeError: what must hold, and what came.
    """
    codes, scale = packed
    known = codes.dtype in (torch.int8, torch.uint8) and scale.dtype == torch.bfloat16
    groups = [codes.shape[0], packed.width // GROUP] if codes.ndim == 2 else None
    if not known or packed.width % GROUP or list(scale.shape) != groups:
        raise ShapeError(
            "codes must be int8 [out, width] or uint8 [out, width / 2] and scale bfloat16 "
            f"[out, width / {GROUP}], got {codes.dtype} {list(codes.shape)} and {scale.dtype} "
            f"{list(scale.shape)}; pass the two of one matrix."
        )

"""MXFP4 number by number, as the format is written (spec section 7.4); in float64."""

import math

import torch

from interlace.shapes import Float, Tensor, UInt8

__all__ = ["quantize_reference", "unpack_reference"]


def unpack_reference(
    packed: UInt8[Tensor, "out bytes"], scale: UInt8[Tensor, "out groups"]
) -> Float[Tensor, "out width"]:
    """Code * 2^(scale - 127) for every element.

    Byte j of a row holds element 2j in its low four bits and 2j + 1 in the high ones. A code is a
    sign bit, two bits of exponent and one of mantissa.
    """
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(1).long()  # [out, width]
    values = torch.tensor([_value(c) for c in range(16)], dtype=torch.float64, device=packed.device)
    powers = [math.ldexp(1.0, byte - 127) for byte in range(256)]
    factors = torch.tensor(powers, dtype=torch.float64, device=packed.device)[scale.long()]
    return values[codes] * factors.repeat_interleave(32, 1)


def quantize_reference(
    weight: Float[Tensor, "out width"],
) -> tuple[Float[Tensor, "out width"], UInt8[Tensor, "out groups"]]:
    """The nearest value of the format for every element, and the scale byte of every group.

    The scale is the power of two nearest to a quarter of the group's largest magnitude, rounded
    half up at a mantissa of 1.5; a tie between two values goes to the even code, and what lies
    beyond 6 times the scale to 6 times the scale.
    """
    values, scales = [], []
    for row in weight.double().tolist():
        rounded, exponents = [], []
        for first in range(0, len(row), 32):
            group = row[first : first + 32]
            exponent = _exponent(max(map(abs, group)))
            exponents.append(exponent + 127)
            for x in group:
                size = min(
                    range(8), key=lambda c: (abs(abs(math.ldexp(x, -exponent)) - _value(c)), c % 2)
                )
                rounded.append(math.copysign(math.ldexp(_value(size), exponent), x))
        values.append(rounded)
        scales.append(exponents)
    return torch.tensor(values, dtype=torch.float64), torch.tensor(scales, dtype=torch.uint8)


def _exponent(largest: float) -> int:
    if largest == 0:
        return 0
    mantissa, exponent = math.frexp(largest / 4)  # mantissa in 0.5..1
    exponent += -1 if 2 * mantissa < 1.5 else 0
    return max(-127, min(125, exponent))


def _value(code: int) -> float:
    sign = -1.0 if code & 8 else 1.0
    exponent, mantissa = (code >> 1) & 3, code & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
    return sign * size

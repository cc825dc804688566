"""Bytes that numbers take in each format, packed ones with their scales.

A packed format keeps one scale for a group of neighbours: along the input of a weight, along a row
of a cache. Which formats the engine can allocate is said here too; the others are arithmetic.
"""

from dataclasses import dataclass

from interlace.errors import ConfigError

__all__ = ["FORMATS", "Format", "number_format"]


@dataclass(frozen=True, slots=True)
class Format:
    """How numbers are kept.

    Args:
        name: one name of it.
        bits: of one number, scales aside.
        group: numbers that share a scale, or 0 where there is none.
        scale_bytes: of one scale.
        allocated: whether weights of this format can be built or loaded here.
    """

    name: str
    bits: int
    group: int = 0
    scale_bytes: int = 0
    allocated: bool = False

    def number_bytes(self, count: int) -> int:
        """Bytes of `count` numbers in a row, without their scales."""
        return -(-count * self.bits // 8)

    def scales(self, count: int) -> int:
        """Bytes of the scales of `count` numbers in a row."""
        return -(-count // self.group) * self.scale_bytes if self.group else 0

    def nbytes(self, count: int) -> int:
        """Bytes of `count` numbers in a row with their scales."""
        return self.number_bytes(count) + self.scales(count)


FORMATS = {
    each.name: each
    for each in (
        Format("float64", 64, allocated=True),
        Format("float32", 32, allocated=True),
        Format("bfloat16", 16, allocated=True),
        Format("float16", 16, allocated=True),
        # one float32 scale for a block of 128 x 128 weights, as DeepSeek publishes them
        Format("fp8", 8, 128 * 128, 4),
        # one for 128 numbers of a cached row
        Format("fp8-row", 8, 128, 4),
        Format("int8", 8, 32, 2),
        Format("int4", 4, 32, 2),
        # routed experts alone; one power of two for a group
        Format("mxfp4", 4, 32, 1, allocated=True),
    )
}
"""Every format by its name."""

_SHORT = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def number_format(name: str, what: str, allowed: tuple[str, ...]) -> Format:
    """The format called `name`.

    Args:
        name: of a format, in full or short (`bf16`).
        what: subject of the message.
        allowed: names that make sense there.

    Raises:
        ConfigError: an unknown format; dropping the term would make a size that "fits".
    """
    full = _SHORT.get(name, name)
    if full not in allowed:
        raise ConfigError(f"{what} must be one of {', '.join(allowed)}, got {name!r}; choose one")
    return FORMATS[full]

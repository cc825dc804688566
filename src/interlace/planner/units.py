"""Numbers as people write them: `1M` tokens, `141GB` of memory, 2.5 ms.

Decimal and binary prefixes are two things: 1M is 1,000,000 and 1Mi is 1,048,576; 1 GB is 10^9 bytes
and 1 GiB is 2^30.
"""

import re
from decimal import Decimal

from interlace.errors import InputError

__all__ = ["parse_bytes", "parse_count", "show_bytes", "show_count", "show_seconds"]

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?|\d{1,3}(?:[,_]\d{3})+)\s*([KMGTP]?)(i?)(B?)", re.IGNORECASE)

MOST = 10**12
"""Tokens or rows beyond which a plan means nothing."""


def parse_count(text: str | int, what: str) -> int:
    """A number of tokens or rows: an int, or `128K`, `1M`, `1Mi`.

    Raises:
        InputError: no whole number from 1 to `MOST`.
    """
    value = text if isinstance(text, int) and not isinstance(text, bool) else None
    if isinstance(text, str) and (found := _NUMBER.fullmatch(text.strip())) and not found[4]:
        value = _value(found)
    if value is None or not 1 <= value <= MOST:
        raise InputError(
            f"{what} must be a whole number from 1 to {MOST:,} such as 4096, 128K (128,000) or "
            f"1Mi (1,048,576), got {text!r}."
        )
    return value


def parse_bytes(text: str | int, what: str) -> int:
    """A number of bytes: an int, or `80GB`, `80GiB`; a unit that could be either is refused.

    Raises:
        InputError: anything else.
    """
    value = text if isinstance(text, int) and not isinstance(text, bool) else None
    if isinstance(text, str) and (found := _NUMBER.fullmatch(text.strip())):
        bare = not found[2] and not found[3] and not found[4]
        value = _value(found) if bare or found[4] else None
    if value is None or value < 1:
        raise InputError(
            f"{what} must be bytes with their unit such as 80GB (10^9) or 80GiB (2^30), got "
            f"{text!r}."
        )
    return value


def _value(found: "re.Match[str]") -> int | None:
    power = _POWERS[found[2].upper()]
    if found[3] and not power:
        return None
    number = Decimal(re.sub("[,_]", "", found[1])) * (1024 if found[3] else 1000) ** power
    return int(number) if number == int(number) else None


def show_bytes(count: int, binary: bool = True) -> str:
    """Bytes for a reader, to three digits: `80.0 GB (74.5 GiB)`, or the decimal form alone."""
    if count < 1000:
        return f"{count} B"
    power = min(4, (len(str(count)) - 1) // 3)
    values = count / 1000**power, count / 1024**power
    decimal, other = (f"{value:,.{2 if value < 9.995 else 1}f}" for value in values)
    letter = "kMGT"[power - 1]
    return f"{decimal} {letter}B" + (f" ({other} {letter.upper()}iB)" if binary else "")


def show_count(count: int) -> str:
    """Tokens for a label: `1M`, `1Mi`, `128Ki`, or the digits."""
    for suffix, base in (("", 1000), ("i", 1024)):
        for letter, power in (("G", 3), ("M", 2), ("K", 1)):
            if count % base**power == 0 and count >= base**power:
                return f"{count // base**power}{letter}{suffix}"
    return f"{count:,}"


def show_seconds(seconds: float) -> str:
    """A time for a reader: three digits and the unit that suits them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size or unit == "us":
            value = seconds / size
            digits = 0 if value >= 100 else 1 if value >= 10 else 2
            return f"{value:,.{digits}f} {unit}"
    raise AssertionError("the last unit takes everything")

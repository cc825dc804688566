"""Marks that a model spells instead of drawing them, found in text that arrives in pieces.

"so <|im" + "_end|> ..."   the piece "<|im" waits, because it may become a mark
"""

import re
from collections.abc import Iterable

__all__ = ["SpelledMarks", "ids_before"]


class SpelledMarks:
    """Splits a stream of text at marks.

    Args:
        marks: their texts; none may be the start of another.
    """

    def __init__(self, marks: Iterable[str]) -> None:
        names = sorted(marks)
        self._pattern = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self._starts = {name[:size] for name in names for size in range(1, len(name))}
        self._longest = max(map(len, names), default=1) - 1
        self._held = ""

    def feed(self, text: str) -> list[tuple[str, bool]]:
        """Add text; return what is settled, in order, each with whether it is a mark."""
        text = self._held + text
        found: list[tuple[str, bool]] = []
        start = 0
        for mark in self._pattern.finditer(text):
            found += [(text[start : mark.start()], False), (mark[0], True)]
            start = mark.end()
        end = len(text)
        for size in range(min(self._longest, end - start), 0, -1):
            if text[end - size :] in self._starts:
                end -= size
                break
        found.append((text[start:end], False))
        self._held = text[end:]
        return [part for part in found if part[0]]

    def flush(self) -> str:
        """What had been held back, now that no mark can come of it."""
        held, self._held = self._held, ""
        return held


def ids_before(ids: list[int], pieces: list[bytes], position: int) -> tuple[list[int], bytes]:
    """The ids whose bytes lie before `position`, and the bytes that are left between.

    Args:
        ids: tokens.
        pieces: the bytes of each.
        position: an offset in the joined bytes.
    """
    length = count = 0
    for piece in pieces:
        if length + len(piece) > position:
            return ids[:count], piece[: position - length]
        length += len(piece)
        count += 1
    return ids[:count], b""

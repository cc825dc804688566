"""Whole characters from bytes that arrive in pieces.

One rule for streamed and one-shot text, so that both are equal for every split:

- bytes that can still become a character wait for the rest;
- bytes that never can become U+FFFD, one for each maximal part, as Python's decoder does;
- a character that is incomplete when the stream ends is dropped.
"""

import codecs

__all__ = ["Utf8Stream", "decode_utf8"]


class Utf8Stream:
    r"""Collects bytes and gives back whole characters.

    Example:
        >>> stream = Utf8Stream()
        >>> [stream.feed(bytes([byte])) for byte in b"\xc2\xb5m"] == ["", "\u00b5", "m"]
        True
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, data: bytes) -> str:
        """Add `data`; return the characters that are now complete."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the stream: an incomplete character is dropped, and the next `feed` starts afresh.

        Returns:
            What the end completes, which for UTF-8 is nothing; other encodings may have a tail.
        """
        self._decoder.reset()
        return ""


def decode_utf8(data: bytes) -> str:
    """The text of `data` by the rule of `Utf8Stream`."""
    stream = Utf8Stream()
    return stream.feed(data) + stream.flush()

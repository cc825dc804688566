"""What a tokenizer is to the rest of the library: text to ids, ids to bytes, and a few marks.

    text --encode--> ids        prefix + encode(text) is how a prompt starts
    ids  --decode--> bytes      a token may hold part of a character, so bytes and not text

Ids come in three kinds: ordinary ones stand for bytes; special ones are marks (`special`, by name)
and stand for none; what is left of a model's vocabulary stands for nothing and is never drawn
(`silent`). A mark is written into a prompt by its id or with `special=True`, never by text that
happens to spell it.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol, runtime_checkable

from interlace.errors import InputError

__all__ = ["Tokenizer", "as_text", "checked"]


@runtime_checkable
class Tokenizer(Protocol):
    """The methods that generation, chat, training and servers use."""

    @property
    def vocab_size(self) -> int:
        """Ids of the model: every id lies in 0..vocab_size-1."""

    @property
    def bos(self) -> int | None:
        """The mark at the start of a document."""

    @property
    def eos(self) -> int | None:
        """The mark at the end of a document."""

    @property
    def stop(self) -> tuple[int, ...]:
        """The ids that end a generation; `eos` is among them where there is one."""

    @property
    def prefix(self) -> list[int]:
        """The ids that come before the text of a prompt."""

    @property
    def special(self) -> dict[str, int]:
        """Every mark that has a name, and its id."""

    def encode(self, text: str | bytes, *, special: bool = False) -> list[int]:
        """The ids of `text`, without `prefix`.

        Args:
            text: what to encode; bytes must be UTF-8 unless the tokens are bytes.
            special: read the names of marks in it as those marks. By default they are plain text,
                which is what a user's text must be.

        Raises:
            InputError: a string that is not valid Unicode, or bytes that are not valid UTF-8.
        """

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes that `ids` stand for; marks and unused ids stand for none.

        Raises:
            InputError: an id that is not in the vocabulary.
        """

    def silent(self, *, keep_eos: bool = True) -> list[int]:
        """The ids that sampling must not draw: those that stand for nothing.

        Args:
            keep_eos: False adds the ids of `stop`, for a generation that runs to its limit.
        """


def as_text(text: str | bytes) -> str:
    """`text` as valid Unicode.

    Raises:
        InputError: bytes that are no UTF-8, or a lone surrogate.
    """
    try:
        if isinstance(text, bytes):
            return text.decode("utf-8")
        text.encode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"text given as bytes must be valid UTF-8, got the byte "
            f"0x{error.object[error.start]:02X} at offset {error.start}; this tokenizer reads text."
        ) from None
    except UnicodeEncodeError as error:
        raise InputError(
            f"text must be valid Unicode, got a lone surrogate at character {error.start}; remove "
            "it."
        ) from None
    return text


def checked(ids: Iterable[int], vocab_size: int) -> Iterator[int]:
    """`ids`, each refused when it is not in the vocabulary."""
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InputError(
                f"token ids must lie in 0..{vocab_size - 1}, got {token}; they come from another "
                "vocabulary."
            )
        yield token

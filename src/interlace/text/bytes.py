"""A tokenizer whose tokens are bytes: id i < 256 is byte i, ids above are marks without text.

The bundled model has two marks, 256 at the start of a document and 257 at its end. A model may have
more ids than that (a rounded vocabulary); those are legal and stand for nothing.
"""

from collections.abc import Iterable

from interlace.errors import InputError

__all__ = ["ByteTokenizer"]

NUM_BYTES = 256


class ByteTokenizer:
    """Bytes to ids and back.

    Args:
        vocab_size: ids of the model, at least 256.
        bos: mark at the start of a document, or None. An id below 256 is a byte and no mark.
        eos: mark at the end of a document, or None; likewise.

    Raises:
        InputError: a vocabulary below 256, or a mark that is no id of it.
    """

    def __init__(
        self, vocab_size: int = NUM_BYTES, bos: int | None = None, eos: int | None = None
    ) -> None:
        if vocab_size < NUM_BYTES:
            raise InputError(
                f"a byte tokenizer needs a vocabulary of at least {NUM_BYTES} ids, got "
                f"{vocab_size}; give this model token ids instead of text."
            )
        for name, mark in (("bos", bos), ("eos", eos)):
            if mark is not None and not 0 <= mark < vocab_size:
                raise InputError(f"{name} must be an id in 0..{vocab_size - 1}, got {mark}.")
        self.vocab_size = vocab_size
        self.bos = bos if bos is not None and bos >= NUM_BYTES else None
        self.eos = eos if eos is not None and eos >= NUM_BYTES else None

    @property
    def prefix(self) -> list[int]:
        """The ids that come before the text of a document: the start mark, where there is one."""
        return [] if self.bos is None else [self.bos]

    @property
    def stop(self) -> tuple[int, ...]:
        """The ids that end a generation: the end mark, where there is one."""
        return () if self.eos is None else (self.eos,)

    @property
    def special(self) -> dict[str, int]:
        """Marks by name: none, for every text is its bytes."""
        return {}

    def encode(self, text: str | bytes, *, special: bool = False) -> list[int]:
        """The ids of `text`, without marks.

        Args:
            text: what to encode; bytes need not be UTF-8.
            special: changes nothing, since no mark has a name.

        Raises:
            InputError: a string with a lone surrogate, which UTF-8 cannot write.
        """
        return list(self.to_bytes(text))

    def to_bytes(self, text: str | bytes) -> bytes:
        """The bytes whose values are the ids of `text`; raises as `encode` does."""
        if isinstance(text, bytes):
            return text
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"text must be valid Unicode, got a lone surrogate at character {error.start}; "
                "remove it or pass bytes."
            ) from None

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes that `ids` stand for; ids from 256 on stand for none.

        Raises:
            InputError: an id that is not in the vocabulary.
        """
        out = bytearray()
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise InputError(
                    f"token ids must lie in 0..{self.vocab_size - 1}, got {token}; "
                    "they come from another vocabulary."
                )
            if token < NUM_BYTES:
                out.append(token)
        return bytes(out)

    def silent(self, *, keep_eos: bool = True) -> list[int]:
        """The ids that sampling must not draw: those without text, but for the end mark if kept."""
        kept = self.eos if keep_eos else None
        return [token for token in range(NUM_BYTES, self.vocab_size) if token != kept]

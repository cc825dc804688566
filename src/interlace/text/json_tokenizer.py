"""`tokenizer.json`, read through the package `tokenizers`.

The file says itself how text is cut and merged. What is added here: marks in a user's text stay
text, the ids that a prompt starts with, and the bytes of one token, so that a stream can be cut
between any two. Two ways to write bytes in a vocabulary of strings are known:

    byte level     each byte is one printable character (GPT-2's alphabet)
    byte fallback  a space is written as U+2581, a byte that is no token as <0xE2>

A file of another kind (word pieces with ##, for one) joins tokens by rules that look at their
neighbours, and is refused.
"""

import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from interlace.errors import CheckpointError, MissingExtra
from interlace.text.tokenizer import as_text, checked

__all__ = ["JSON_FILE", "JsonTokenizer"]

JSON_FILE = "tokenizer.json"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class JsonTokenizer:
    """Text to ids and back as a `tokenizer.json` says.

    Args:
        folder: holds `tokenizer.json`.
        vocab_size: ids of the model; None takes those of the file.
        bos: name or id of the start mark.
        eos: name or id of the end mark.
        add_bos: put the start mark before a prompt even where the file does not.
        stop: further ids that end a generation.

    Raises:
        MissingExtra: `tokenizers` is not installed.
        CheckpointError: a broken file, one of an unknown kind, or one with more ids than the model.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        vocab_size: int | None = None,
        bos: str | int | None = None,
        eos: str | int | None = None,
        add_bos: bool = False,
        stop: Iterable[int] = (),
    ) -> None:
        self._file = Path(folder) / JSON_FILE
        self._text, parsed = _read(self._file)
        self._plain = self._make()
        self._plain.encode_special_tokens = True  # the library's word for: marks are plain text
        added = self._plain.get_added_tokens_decoder()
        self.special = {token.content: id_ for id_, token in added.items() if token.special}
        vocabulary: dict[str, int] = self._plain.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        if vocab_size is not None:
            if self.vocab_size > vocab_size:
                raise CheckpointError(
                    f"{self._file} has ids up to {self.vocab_size - 1}, but the model has only "
                    f"{vocab_size}; the files do not belong together."
                )
            self.vocab_size = vocab_size
        to_bytes = _byte_rule(parsed.get("decoder"), self._file)
        self._tokens: list[bytes | None] = [None] * self.vocab_size
        for name, token in vocabulary.items():
            literal = token in added
            self._tokens[token] = name.encode() if literal else to_bytes(name)
        for token in self.special.values():
            self._tokens[token] = b""
        self.bos = self._mark(bos, "bos_token", vocabulary)
        self.eos = self._mark(eos, "eos_token", vocabulary)
        self.stop = tuple(dict.fromkeys([*([] if self.eos is None else [self.eos]), *stop]))
        self.prefix = self._first_ids()
        if add_bos and not self.prefix and self.bos is not None:
            self.prefix = [self.bos]

    def _make(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise MissingExtra(str(self._file), "tokenizers", "tokenizers") from None
        try:
            return Tokenizer.from_str(self._text)
        except Exception as error:  # the library raises no narrower class
            raise CheckpointError(
                f"{self._file} is no tokenizer that the package tokenizers can read ({error}); "
                "fetch it again, or install a newer version of the package."
            ) from None

    def _mark(self, value: str | int | None, what: str, vocabulary: dict[str, int]) -> int | None:
        if value is None or (isinstance(value, int) and value < self.vocab_size):
            return value
        if value in vocabulary:
            return vocabulary[str(value)]
        raise CheckpointError(
            f"the {what} of {self._file.parent} is {value!r}, which is no token of its tokenizer; "
            "correct tokenizer_config.json."
        )

    def _first_ids(self) -> list[int]:
        """What the file puts before a text: found by encoding one with and without it."""
        whole: list[int] = self._plain.encode("a").ids
        bare: list[int] = self._plain.encode("a", add_special_tokens=False).ids
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return whole[:start]
        return []

    @cached_property
    def _marked(self) -> Any:
        """A second reader of the same file, which takes the names of marks for marks."""
        return self._make()

    def encode(self, text: str | bytes, *, special: bool = False) -> list[int]:
        """The ids of `text`; see `Tokenizer.encode`."""
        reader = self._marked if special else self._plain
        ids: list[int] = reader.encode(as_text(text), add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`; see `Tokenizer.decode`."""
        return b"".join(self._tokens[token] or b"" for token in checked(ids, self.vocab_size))

    def silent(self, *, keep_eos: bool = True) -> list[int]:
        """The ids that the file does not have, and the start mark."""
        never = {token for token, data in enumerate(self._tokens) if data is None}
        never |= {self.bos} if self.bos is not None else set()
        return sorted(never - {*self.stop} if keep_eos else never | {*self.stop})


def _read(file: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
        parsed = json.loads(text)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror}); check it.") from None
    except ValueError as error:
        raise CheckpointError(f"{file} is not valid JSON ({error}); fetch it again.") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{file} must hold a JSON object; fetch it again.")
    return text, parsed


def _byte_rule(decoder: Any, file: Path) -> Any:
    """The function from the name of a token to its bytes."""
    parts = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    kinds = {part.get("type") for part in parts if isinstance(part, dict)}
    if "ByteLevel" in kinds:
        alphabet = _byte_alphabet()
        return lambda name: b"".join(alphabet.get(char) or char.encode() for char in name)
    if kinds & {"ByteFallback", "Metaspace"}:
        return _fallback_bytes
    raise CheckpointError(
        f"{file} must join its tokens byte by byte (a decoder ByteLevel, ByteFallback or "
        f"Metaspace), got {', '.join(sorted(map(str, kinds))) or 'none'}; this tokenizer cannot be "
        "read."
    )


def _fallback_bytes(name: str) -> bytes:
    single = _BYTE.fullmatch(name)
    if single:
        return bytes([int(single[1], 16)])
    return name.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, bytes]:
    """GPT-2's character of each byte: itself where it prints, else the next code from 256 on."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in prints]
    table = {chr(byte): bytes([byte]) for byte in prints}
    return table | {chr(256 + place): bytes([byte]) for place, byte in enumerate(hidden)}

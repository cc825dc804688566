"""The tokenizer of the published models: `tiktoken.model`, read through the package `tiktoken`.

    text --cuts--> pieces --pattern--> words --merges--> ids        plain: marks are ordinary text
    text --cuts--> pieces --marks found anywhere, then as above     special=True

The pattern, the cuts and the 256 reserved ids are constants of the format (spec section 8.1): with
others the ids differ from those that the model was trained on.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from interlace.errors import CheckpointError, MissingExtra
from interlace.text.ranks import CONFIG_FILE, NUM_RESERVED, RANK_FILE, named_marks, read_ranks
from interlace.text.tokenizer import as_text, checked

__all__ = ["RankTokenizer"]

_LETTERS = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]"
_UPPER, _LOWER = rf"[\p{{Lu}}\p{{Lt}}{_LETTERS}]", rf"[\p{{Ll}}{_LETTERS}]"
_TAIL = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_TAIL}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_TAIL}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""How text is cut into words before merging, in the notation of tiktoken's regular expressions."""

MAX_CHARACTERS = 400_000
MAX_RUN = 25_000
_RUN = re.compile(r"\s+|\S+")


class RankTokenizer:
    """Text to ids and back by ranked merges of bytes.

    Args:
        folder: holds `tiktoken.model`.
        vocab_size: ids of the model; None takes the ranks and the reserved ids.
        names: `added_tokens_decoder` of the folder's `tokenizer_config.json`.
        bos: name or id of the start mark, which `prefix` does not hold: the published tokenizer
            puts nothing before a text.
        eos: name or id of the end mark.
        stop: further ids that end a generation.

    Raises:
        MissingExtra: `tiktoken` is not installed.
        CheckpointError: a broken file, or names and vocabulary that do not fit it.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        vocab_size: int | None = None,
        names: dict[str, Any] | None = None,
        bos: str | int | None = None,
        eos: str | int | None = None,
        stop: Iterable[int] = (),
    ) -> None:
        file = Path(folder) / RANK_FILE
        encoding = _encoding_class(file)
        ranks = read_ranks(file)
        first = len(ranks)
        self.vocab_size = first + NUM_RESERVED if vocab_size is None else vocab_size
        if self.vocab_size < first:
            raise CheckpointError(
                f"{file} has {first} tokens, but the model has only {self.vocab_size} ids; the "
                "files do not belong together."
            )
        end = min(self.vocab_size, first + NUM_RESERVED)
        named = named_marks(names, first, end, file.with_name(CONFIG_FILE))
        taken = set(named.values())
        unnamed = [token for token in range(first, end) if token not in taken]
        self.special = {**named, **{f"<|reserved_token_{token}|>": token for token in unnamed}}
        self._nothing = [*unnamed, *range(end, self.vocab_size)]
        self.bos = self._mark(bos, "bos_token", file)
        self.eos = self._mark(eos, "eos_token", file)
        self.stop = tuple(dict.fromkeys([*([] if self.eos is None else [self.eos]), *stop]))
        self._tokens = [b""] * self.vocab_size
        for token, rank in ranks.items():
            self._tokens[rank] = token
        self._encoding = encoding(
            file.name, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=self.special
        )

    def _mark(self, value: str | int | None, what: str, file: Path) -> int | None:
        if value is None or (isinstance(value, int) and value < self.vocab_size):
            return value
        if value in self.special:
            return self.special[str(value)]
        raise CheckpointError(
            f"the {what} of {file.parent} is {value!r}, which is no mark of its tokenizer; correct "
            "tokenizer_config.json."
        )

    @property
    def prefix(self) -> list[int]:
        """Nothing: the published tokenizer puts no mark before a text."""
        return []

    def encode(self, text: str | bytes, *, special: bool = False) -> list[int]:
        """The ids of `text`; see `Tokenizer.encode`."""
        return [token for piece in _cut(as_text(text)) for token in self._ids(piece, special)]

    def _ids(self, piece: str, special: bool) -> list[int]:
        if special:
            ids: list[int] = self._encoding.encode(piece, allowed_special="all")
        else:
            ids = self._encoding.encode_ordinary(piece)
        return ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`; see `Tokenizer.decode`."""
        return b"".join(self._tokens[token] for token in checked(ids, self.vocab_size))

    def silent(self, *, keep_eos: bool = True) -> list[int]:
        """Reserved ids without a name, ids behind the reserved ones, and the start mark."""
        never = {*self._nothing, *([] if self.bos is None else [self.bos])}
        return sorted(never - {*self.stop} if keep_eos else never | {*self.stop})


def _encoding_class(file: Path) -> Any:
    try:
        from tiktoken import Encoding
    except ImportError:
        raise MissingExtra(f"{file}", "tiktoken", "tiktoken") from None
    return Encoding


def _cut(text: str) -> Iterator[str]:
    """Pieces that are encoded apart: at most 400,000 characters, no run of one kind over 25,000.

    A run is of whitespace or of anything else; the piece ends inside one that is too long.
    """
    for first in range(0, len(text), MAX_CHARACTERS):
        block = text[first : first + MAX_CHARACTERS]
        start = 0
        for run in _RUN.finditer(block):
            for cut in range(run.start() + MAX_RUN, run.end(), MAX_RUN):
                yield block[start:cut]
                start = cut
        yield block[start:]

"""A tokenizer with marks whose ordinary ids are bytes, so that any text can be cut at any byte."""

from interlace.text import ByteTokenizer
from interlace.text.ranks import KIMI_MARKS


class MarkedBytes(ByteTokenizer):
    """Ids 0..255 are bytes, the marks lie behind them in their order."""

    def __init__(self, without: tuple[str, ...] = (), marks: dict[int, str] = KIMI_MARKS) -> None:
        names = [name for name in marks.values() if name not in without]
        super().__init__(300, bos=256, eos=257)
        self._special = {name: 256 + place for place, name in enumerate(names)}

    @property
    def special(self) -> dict[str, int]:
        return self._special


def with_marks(tokenizer: MarkedBytes, text: str) -> list[int]:
    """What a template would write, with its marks as marks."""
    ids, rest = [], text
    while rest:
        name = next((name for name in tokenizer.special if rest.startswith(name)), None)
        ids += [tokenizer.special[name]] if name else list(rest[0].encode())
        rest = rest[len(name) :] if name else rest[1:]
    return ids


def as_template(tokenizer: MarkedBytes, ids) -> str:
    """The text of ids with the marks by name, as a template renders it."""
    names = {token: name.encode() for name, token in tokenizer.special.items()}
    return b"".join(names.get(token) or bytes([token]) for token in ids).decode()


def pieces_of(parser, ids) -> list:
    """Every piece of an answer, id by id and with its end."""
    return [piece for token in ids for piece in parser.feed([token])] + parser.finish()


def said(pieces, channel: str = "answer") -> str:
    return "".join(piece.text for piece in pieces if piece.channel == channel)

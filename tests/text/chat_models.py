"""A tokenizer with marks whose ordinary ids are bytes, so that any text can be cut at any byte."""

from interlace.text import ByteTokenizer
from interlace.text.ranks import KIMI_MARKS


class MarkedBytes(ByteTokenizer):
    """Ids 0..255 are bytes, the marks of Kimi Linear lie behind them in their order."""

    def __init__(self, without: tuple[str, ...] = ()) -> None:
        names = [name for name in KIMI_MARKS.values() if name not in without]
        super().__init__(300, bos=256, eos=257)
        self._special = {name: 256 + place for place, name in enumerate(names)}

    @property
    def special(self) -> dict[str, int]:
        return self._special


def pieces_of(parser, ids) -> list:
    """Every piece of an answer, id by id and with its end."""
    return [piece for token in ids for piece in parser.feed([token])] + parser.finish()


def said(pieces, channel: str = "answer") -> str:
    return "".join(piece.text for piece in pieces if piece.channel == channel)

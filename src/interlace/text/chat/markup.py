"""The markup of Kimi K3: elements between four marks (spec section 8.2).

    <|open|>TAG KEY="VALUE"<|sep|> TEXT <|close|>TAG<|sep|>          an element
    ... <|close|>message<|sep|><|end_of_msg|>                        the end of a message

Each fragment (a tag, a key, a value, a text) is encoded by itself, as the model was trained: the
string of the whole has other ids. In a value & and " are escaped, and nothing else.
"""

import re

from interlace.errors import InputError
from interlace.text.tokenizer import Tokenizer

__all__ = ["CLOSE", "END", "MARKS", "OPEN", "SEP", "Markup", "read_tag"]

OPEN, CLOSE, SEP, END = MARKS = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")

_ATTRIBUTE = re.compile(r'\s([^\s="]+)="([^"]*)"')


class Markup:
    """Writes elements as ids.

    Args:
        tokenizer: has the marks.

    Raises:
        InputError: it lacks one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        lacking = [mark for mark in MARKS if mark not in tokenizer.special]
        if lacking:
            raise InputError(
                f"the chat format kimi-k3 needs a tokenizer with the marks {', '.join(MARKS)}, and "
                f"this one lacks {', '.join(lacking)}."
            )
        self.text = tokenizer.encode
        self._open, self._close, self._sep, self.end = (tokenizer.special[mark] for mark in MARKS)

    def open(self, tag: str, **attributes: str) -> list[int]:
        """The start of an element."""
        ids = [self._open, *self.text(tag)]
        for key, value in attributes.items():
            escaped = value.replace("&", "&amp;").replace('"', "&quot;")
            for fragment in (f" {key}", '="', escaped, '"'):
                ids += self.text(fragment)
        return [*ids, self._sep]

    def close(self, *tags: str) -> list[int]:
        """The ends of elements, one after the other; that of a message ends the message."""
        ids: list[int] = []
        for tag in tags:
            end = [self.end] if tag == "message" else []
            ids += [self._close, *self.text(tag), self._sep, *end]
        return ids

    def element(self, tag: str, text: str, **attributes: str) -> list[int]:
        """A whole element."""
        return [*self.open(tag, **attributes), *self.text(text), *self.close(tag)]


def read_tag(text: str) -> tuple[str, dict[str, str]]:
    """The tag and the attributes of what stands between a mark and <|sep|>."""
    tag = text.split(maxsplit=1)[0] if text.strip() else ""
    attributes = {
        key: value.replace("&quot;", '"').replace("&amp;", "&")
        for key, value in _ATTRIBUTE.findall(text)
    }
    return tag, attributes

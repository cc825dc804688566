"""Takes an answer of Kimi K3 apart while it is drawn: reasoning, answer, tool calls.

    think --close think--> outside --open response--> response --close response--> outside
                                                                                     |
    end <--close message-- outside <--close tools-- tools <--> call <--> argument <--'

What a mark announces (a tag and its attributes) is collected up to <|sep|> and shown to nobody. A
model that leaves an end out is understood all the same: whatever opens next ends what was open.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from interlace.text.chat.format import Channel, Piece
from interlace.text.chat.markup import CLOSE, END, MARKS, OPEN, SEP, Markup, read_tag
from interlace.text.chat.messages import Message
from interlace.text.chat.spelled import SpelledMarks
from interlace.text.tokenizer import Tokenizer
from interlace.text.utf8 import Utf8Stream

__all__ = ["KimiK3Parser"]

_ENDS = ("[EOS]", "[EOT]", END)

_CLOSING = {
    "response": ("response",),
    "tools": ("tools",),
    "call": ("call", "tools"),
    "json": ("json", "call", "tools"),
    "argument": ("argument", "call", "tools"),
}


class KimiK3Parser:
    """Follows an answer from element to element; see `ChatParser`.

    Args:
        tokenizer: of the model.
        markup: writes elements.
        stop: ids that end an answer.
        thinking: the prompt ended inside `think`, else inside `response`.
        body: the ids of a message, as `KimiK3Chat.body`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        markup: Markup,
        stop: Iterable[int],
        *,
        thinking: bool,
        body: Callable[[Message], list[int]],
    ) -> None:
        self._tokenizer, self._markup, self._body = tokenizer, markup, body
        self._names = {token: name for name, token in tokenizer.special.items()}
        self._stop = frozenset(stop)
        self._spelled = SpelledMarks(MARKS)
        self._bytes = Utf8Stream()
        self._inside = "think" if thinking else "response"
        self._responded = not thinking
        self._tag: str | None = None
        self._opens = False
        self._tag_from = 0
        self._rewritten = False
        self._left_open: list[int] | None = None
        self._reasoning: list[str] = []
        self._answer: list[str] = []
        self._calls: list[_Call] = []
        self._ids: list[int] = []
        self.done = False

    @property
    def ids(self) -> list[int]:
        """What was said, without what ended it; written anew where a mark had been spelled."""
        if self._rewritten:
            return self._body(self.message)
        return self._ids[: self._tag_from] if self._tag is not None else list(self._ids)

    @property
    def closing(self) -> list[int]:
        """The ids that end the message behind `ids`, whatever was left open."""
        markup = self._markup
        if self._rewritten:
            return markup.close("message")
        if self._left_open is not None:
            return self._left_open
        ids = markup.close("think") if self._inside == "think" else []
        if self._inside in ("think", "") and not self._responded:
            ids += [*markup.open("response"), *markup.close("response")]
        return [*ids, *markup.close(*_CLOSING.get(self._inside, ()), "message")]

    @property
    def message(self) -> dict[str, Any]:
        """The answer so far, as a message."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._answer)}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [call.message for call in self._calls]
        return message

    def feed(self, ids: Iterable[int]) -> list[Piece]:
        """Read ids; return what is now certain to be text."""
        pieces: list[Piece] = []
        for token in ids:
            if self.done:
                break
            marked = token in self._names or token in self._stop
            pieces += self._drawn(token) if marked else self._spelt(token)
        return pieces

    def finish(self) -> list[Piece]:
        """End the answer; return what had been held back.

        A call that was cut off stays cut off: its arguments are no whole JSON then.
        """
        pieces: list[Piece] = []
        if not self.done:
            pieces = self._read(self._rest())
            if self._inside == "argument":
                pieces += self._of_call(self._calls[-1].held())
        self.done = True
        return pieces

    def _drawn(self, token: int) -> list[Piece]:
        """A mark by its id. What was held back before it is text after all."""
        pieces = self._read(self._rest())
        name = self._names.get(token, "")
        if token in self._stop or name in _ENDS:
            return pieces + self._end()
        self._ids.append(token)
        return pieces + self._mark(name, len(self._ids) - 1)

    def _spelt(self, token: int) -> list[Piece]:
        """A token of text, in which a mark may be spelled."""
        self._ids.append(token)
        pieces: list[Piece] = []
        text = self._bytes.feed(self._tokenizer.decode([token]))
        for part, is_mark in self._spelled.feed(text):
            self._rewritten |= is_mark
            pieces += self._mark(part, 0) if is_mark else self._read(part)
            if self.done:
                break
        return pieces

    def _rest(self) -> str:
        return self._spelled.flush() + self._bytes.flush()

    def _mark(self, name: str, place: int) -> list[Piece]:
        if name == END:
            return self._end()
        if name in (OPEN, CLOSE):
            self._tag, self._opens, self._tag_from = "", name == OPEN, place
        elif name == SEP and self._tag is not None:
            (tag, attributes), opens = read_tag(self._tag), self._opens
            if tag == "message":  # the end of this one, or the start of another
                return self._end()
            self._tag = None
            return self._opened(tag, attributes) if opens else self._closed(tag)
        return []

    def _end(self) -> list[Piece]:
        """The model has ended its message, and with it what it left open."""
        self._left_open = self.closing
        pieces = self._leave("message")
        self.done = True
        return pieces

    def _opened(self, tag: str, attributes: dict[str, str]) -> list[Piece]:
        pieces = self._leave(tag)
        call = self._calls[-1] if self._calls and self._inside == "call" else None
        if tag in ("think", "response", "tools"):
            self._inside = tag
            self._responded |= tag == "response"
        elif tag == "call":
            self._calls.append(_Call(attributes.get("tool", ""), len(self._calls) + 1))
            self._inside = "call"
            pieces.append(Piece("call", "", self._calls[-1].id))
        elif tag == "argument" and call:
            self._inside = "argument"
            pieces += self._of_call(
                call.begin(attributes.get("key", ""), attributes.get("type", "string"))
            )
        elif tag == "json" and call:
            self._inside = "json"
        return pieces

    def _closed(self, tag: str) -> list[Piece]:
        inner = self._inside
        pieces = self._leave(tag)
        if tag in ("argument", "json") and inner in ("argument", "json"):
            self._inside = "call"
        elif tag == self._inside:
            self._inside = ""
        return pieces

    def _leave(self, tag: str) -> list[Piece]:
        """End an argument, and the call around it unless `tag` belongs to that."""
        pieces: list[Piece] = []
        if self._inside == "argument":
            pieces += self._of_call(self._calls[-1].end())
            self._inside = "call"
        if self._inside in ("call", "json") and tag not in ("argument", "json"):
            pieces += self._of_call(self._calls[-1].close())
            self._inside = "tools"
        return pieces

    def _read(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._tag is not None:
            self._tag += text
            return []
        if self._inside == "argument":
            return self._of_call(self._calls[-1].add(text))
        if self._inside == "call" and text.strip() and self._calls[-1].empty:
            self._inside, text = "json", text.lstrip()
        if self._inside == "json":
            return self._of_call(self._calls[-1].raw(text))
        if self._inside == "" and text.strip():
            self._inside, self._responded, text = "response", True, text.lstrip()  # start left out
        said: dict[str, tuple[Channel, list[str]]] = {
            "think": ("reasoning", self._reasoning),
            "response": ("answer", self._answer),
        }
        if self._inside not in said:
            return []
        channel, parts = said[self._inside]
        parts.append(text)
        return [Piece(channel, text)]

    def _of_call(self, text: str) -> list[Piece]:
        return [Piece("call", text, self._calls[-1].id)] if text else []


class _Call:
    """A call, its arguments written as JSON while they come.

    Args:
        name: of the tool.
        number: of the call in its message, from 1.
    """

    def __init__(self, name: str, number: int) -> None:
        self.id = f"{name}:{number}"
        self._name = name
        self._text: list[str] = []
        self._string = self._keyed = False
        self._held: list[str] = []

    @property
    def empty(self) -> bool:
        """Nothing was said of its arguments."""
        return not self._text

    @property
    def message(self) -> dict[str, Any]:
        """The call, as a message has it."""
        function = {"name": self._name, "arguments": "".join(self._text)}
        return {"id": self.id, "type": "function", "function": function}

    def begin(self, key: str, kind: str) -> str:
        """Start the argument `key`."""
        self._string, self._keyed, self._held = kind == "string", True, []
        start = "{" if self.empty else ", "
        quote = '"' if self._string else ""
        return self.raw(f"{start}{json.dumps(key, ensure_ascii=False)}: {quote}")

    def add(self, text: str) -> str:
        """Go on with the value of an argument; of one that is no string nothing is said yet."""
        if self._string:
            return self.raw(json.dumps(text, ensure_ascii=False)[1:-1])
        self._held.append(text)
        return ""

    def held(self) -> str:
        """What was not said yet, as it came."""
        text, self._held = "".join(self._held), []
        return self.raw(text)

    def end(self) -> str:
        """End the argument; a value that is no JSON becomes a string."""
        if self._string:
            return self.raw('"')
        text, self._held = "".join(self._held), []
        return self.raw(text if _is_json(text) else json.dumps(text, ensure_ascii=False))

    def close(self) -> str:
        """End the call."""
        if self.empty:
            return self.raw("{}")
        return self.raw("}") if self._keyed else ""

    def raw(self, text: str) -> str:
        """Add to the arguments as it is."""
        if text:
            self._text.append(text)
        return text


def _is_json(text: str) -> bool:
    try:
        json.loads(text, parse_constant=_no_number)
    except ValueError:
        return False
    return True


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)

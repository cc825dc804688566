"""The turns of Kimi Linear (spec section 8.2).

    <|im_system|>system<|im_middle|>CONTENT<|im_end|>
    <|im_user|>user<|im_middle|>CONTENT<|im_end|>
    <|im_assistant|>assistant<|im_middle|>             what asks for an answer

No mark of the start of a document, no line break between turns, and no system text of our own. A
declaration of tools comes first, a tool call stands inside the answer:

    <|im_system|>tool_declare<|im_middle|>JSON<|im_end|>
    <|tool_calls_section_begin|>
        <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>JSON<|tool_call_end|>
    <|tool_calls_section_end|>
    <|im_system|>tool<|im_middle|>## Return of functions.NAME:0
    CONTENT<|im_end|>

There is no place for reasoning: that of earlier answers is left out.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from interlace.errors import InputError
from interlace.text.chat.format import ChatParser, Piece
from interlace.text.chat.messages import Message, check_messages, check_tools
from interlace.text.chat.spelled import SpelledMarks, ids_before
from interlace.text.tokenizer import Tokenizer
from interlace.text.utf8 import Utf8Stream

__all__ = ["KimiLinearChat"]

SYSTEM, USER, ASSISTANT = "<|im_system|>", "<|im_user|>", "<|im_assistant|>"
MIDDLE, END = "<|im_middle|>", "<|im_end|>"
SECTION_BEGIN, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL_BEGIN, CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"

_NEEDED = (SYSTEM, USER, ASSISTANT, MIDDLE, END)
_TOOLS = (SECTION_BEGIN, SECTION_END, CALL_BEGIN, CALL_END, ARGUMENTS)
_ENDS = ("[EOS]", "[EOT]", END, SYSTEM, USER, ASSISTANT)
"""What ends an answer: its end mark, an end of the text, or the start of another turn."""

_FUNCTIONS = "functions."


class KimiLinearChat:
    """Turns of Kimi Linear.

    Args:
        tokenizer: has the marks.

    Raises:
        InputError: it lacks one.
    """

    name = "kimi-linear"

    def __init__(self, tokenizer: Tokenizer) -> None:
        lacking = [mark for mark in _NEEDED if mark not in tokenizer.special]
        if lacking:
            raise InputError(
                f"the chat format {self.name} needs a tokenizer with the marks "
                f"{', '.join(_NEEDED)}, and this one lacks {', '.join(lacking)}."
            )
        self._tokenizer = tokenizer
        self.stop = tuple(dict.fromkeys([tokenizer.special[END], *tokenizer.stop]))
        self.opening = self._head(ASSISTANT, "assistant")
        self._closing = [tokenizer.special[END]]

    @staticmethod
    def fits(tokenizer: Tokenizer) -> bool:
        """Whether the tokenizer has every mark that a turn needs."""
        return all(mark in tokenizer.special for mark in _NEEDED)

    def encode(
        self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """The prompt that asks for the next answer; see `ChatFormat.encode`."""
        return [*self.begin(tools), *self.turns(check_messages(messages)), *self.opening]

    def begin(self, tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        """The ids before the first turn."""
        if not tools:
            return []
        declaration = json.dumps(check_tools(tools), ensure_ascii=False, separators=(",", ":"))
        return [*self._head(SYSTEM, "tool_declare"), *self._text(declaration), *self._closing]

    def turns(self, messages: Sequence[Message], before: Sequence[Message] = ()) -> list[int]:
        """The ids of messages; those before them change nothing."""
        return [token for message in messages for token in self._turn(message)]

    def _turn(self, message: Message) -> list[int]:
        role, content = message["role"], message["content"]
        if message.get("tools"):
            raise InputError(
                f"the chat format {self.name} declares tools before the first turn alone, got a "
                "system message with some; give them as tools."
            )
        if role == "tool":
            content = f"## Return of {message.get('tool_call_id', '')}\n{content}"
        mark = {"user": USER, "assistant": ASSISTANT}.get(role, SYSTEM)
        body = [*self._text(content), *self._calls(message.get("tool_calls"))]
        return [*self._head(mark, message.get("name") or role), *body, *self._closing]

    def parser(self) -> ChatParser:
        """A reader of one answer."""
        return _Parser(self._tokenizer, self.stop, self._closing)

    def _mark(self, name: str) -> int:
        if name not in self._tokenizer.special:
            raise InputError(f"tools need a tokenizer with the mark {name}, and this one lacks it.")
        return self._tokenizer.special[name]

    def _text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def _head(self, mark: str, name: str) -> list[int]:
        return [self._mark(mark), *self._text(name), self._mark(MIDDLE)]

    def _calls(self, calls: list[dict[str, Any]] | None) -> list[int]:
        if not calls:
            return []
        ids = [self._mark(SECTION_BEGIN)]
        for call in calls:
            ids += [self._mark(CALL_BEGIN), *self._text(call["id"]), self._mark(ARGUMENTS)]
            ids += [*self._text(call["function"]["arguments"]), self._mark(CALL_END)]
        return [*ids, self._mark(SECTION_END)]


class _Parser:
    """Follows an answer from mark to mark; see `ChatParser`.

    States: the answer, a section between calls, the id of a call, its arguments.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Iterable[int], closing: list[int]) -> None:
        self._tokenizer = tokenizer
        self.closing = closing
        self._names = {token: name for name, token in tokenizer.special.items()}
        self._stop = frozenset(stop)
        self._spelled = SpelledMarks([*_NEEDED, *_TOOLS])
        self._bytes = Utf8Stream()
        self._state = "answer"
        self._answer: list[str] = []
        self._id = ""
        self._calls: list[dict[str, Any]] = []
        self._ids: list[int] = []
        self._plain_from = 0
        self.done = False

    @property
    def ids(self) -> list[int]:
        """What was said, without what ended it."""
        return list(self._ids)

    @property
    def message(self) -> dict[str, Any]:
        """The answer so far, as a message."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._answer)}
        if self._calls:
            message["tool_calls"] = [_as_message(call) for call in self._calls]
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
        """End the answer; return what had been held back."""
        pieces = [] if self.done else self._read(self._rest())
        self.done = True
        return pieces

    def _drawn(self, token: int) -> list[Piece]:
        """A mark by its id. What was held back before it is text after all."""
        pieces = self._read(self._rest())
        pieces += self._mark(self._names.get(token, ""), ended=token in self._stop)
        if not self.done:
            self._ids.append(token)
            self._plain_from = len(self._ids)
        return pieces

    def _spelt(self, token: int) -> list[Piece]:
        """A token of text, in which a mark may be spelled."""
        self._ids.append(token)
        pieces: list[Piece] = []
        text = self._bytes.feed(self._tokenizer.decode([token]))
        for part, is_mark in self._spelled.feed(text):
            pieces += self._mark(part) if is_mark else self._read(part)
            if self.done:
                self._cut()
                break
        return pieces

    def _rest(self) -> str:
        return self._spelled.flush() + self._bytes.flush()

    def _mark(self, name: str, ended: bool = False) -> list[Piece]:
        if ended or name in _ENDS:
            self.done = True
        elif name in (SECTION_BEGIN, CALL_END):
            self._state = "section"
        elif name == SECTION_END:
            self._state = "answer"
        elif name == CALL_BEGIN:
            self._state, self._id = "id", ""
        elif name == ARGUMENTS and self._state == "id":
            self._state = "arguments"
            self._calls.append({"id": self._id.strip(), "arguments": []})
            return [Piece("call", "", self._id.strip())]
        return []

    def _read(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._state == "answer":
            self._answer.append(text)
            return [Piece("answer", text)]
        if self._state == "arguments":
            call = self._calls[-1]
            call["arguments"].append(text)
            return [Piece("call", text, call["id"])]
        if self._state == "id":
            self._id += text
        return []

    def _cut(self) -> None:
        """Leave out of the ids the end that was spelled, and what follows it in the same token."""
        start = self._plain_from
        tail = self._ids[start:]
        data = [self._tokenizer.decode([token]) for token in tail]
        ends = [b"".join(data).find(end.encode()) for end in _ENDS if end in _NEEDED]
        kept, between = ids_before(tail, data, min(place for place in ends if place >= 0))
        more = self._tokenizer.encode(between.decode(errors="ignore")) if between else []
        self._ids[start:] = [*kept, *more]


def _as_message(call: dict[str, Any]) -> dict[str, Any]:
    name = call["id"].rpartition(":")[0] or call["id"]
    function = {"name": name.removeprefix(_FUNCTIONS), "arguments": "".join(call["arguments"])}
    return {"id": call["id"], "type": "function", "function": function}

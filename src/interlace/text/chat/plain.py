"""Turns as plain text, for models that were trained on no chat format.

    CONTENT OF THE SYSTEM MESSAGE

    User: CONTENT
    Assistant: ANSWER
    User: ...

An answer ends where the text says "User:" at the start of a line, or at the end mark of a document.
Nothing tells a label from a user's text that looks like one: that is what marks are for.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from interlace.errors import InputError
from interlace.text.chat.format import ChatParser, Piece
from interlace.text.chat.messages import Message, check_messages
from interlace.text.chat.spelled import SpelledMarks, ids_before
from interlace.text.tokenizer import Tokenizer
from interlace.text.utf8 import Utf8Stream

__all__ = ["PlainChat"]

_ASK = "Assistant:"
_END = "\nUser:"


class PlainChat:
    """Turns as lines that begin with "User:" and "Assistant:".

    Args:
        tokenizer: any.
    """

    name = "plain"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.stop = tokenizer.stop
        self.opening = tokenizer.encode(_ASK)
        self._closing = tokenizer.encode("\n")

    def encode(
        self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """The prompt that asks for the next answer; see `ChatFormat.encode`."""
        return [*self.begin(tools), *self.turns(check_messages(messages)), *self.opening]

    def begin(self, tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        """The ids before the first turn."""
        if tools:
            raise InputError(f"the chat format {self.name} has no tools, got {len(tools)}.")
        return self._tokenizer.prefix

    def turns(self, messages: Sequence[Message], before: Sequence[Message] = ()) -> list[int]:
        """The ids of messages; those before them change nothing."""
        return [token for message in messages for token in self._turn(message)]

    def _turn(self, message: Message) -> list[int]:
        role, content = message["role"], message["content"]
        if message.get("name") and role != "tool":
            raise InputError(
                f"the chat format {self.name} has no place for a name, got "
                f"{message['name']!r:.80}; leave it out."
            )
        if role == "tool" or message.get("tool_calls") or message.get("tools"):
            raise InputError(
                f"the chat format {self.name} has no tools, got a message of the role {role} with "
                "one; leave it out."
            )
        if role == "system":
            return self._tokenizer.encode(f"{content}\n\n")
        if role == "user":
            return self._tokenizer.encode(f"User: {content}\n")
        return [*self.opening, *self._tokenizer.encode(f" {content}"), *self._closing]

    def parser(self) -> ChatParser:
        """A reader of one answer."""
        return _Parser(self._tokenizer, self._closing)


class _Parser:
    """Takes text up to the next label; see `ChatParser`."""

    def __init__(self, tokenizer: Tokenizer, closing: list[int]) -> None:
        self._tokenizer = tokenizer
        self.closing = closing
        self._spelled = SpelledMarks([_END])
        self._bytes = Utf8Stream()
        self._answer = ""
        self._ids: list[int] = []
        self.done = False

    @property
    def ids(self) -> list[int]:
        """What was said, without what ended it."""
        return list(self._ids)

    @property
    def message(self) -> dict[str, Any]:
        """The answer so far, as a message."""
        return {"role": "assistant", "content": self._answer}

    def feed(self, ids: Iterable[int]) -> list[Piece]:
        """Read ids; return what is now certain to be text."""
        pieces: list[Piece] = []
        for token in ids:
            if self.done or token in self._tokenizer.stop:
                self.done = True
                break
            self._ids.append(token)
            for text, is_end in self._spelled.feed(
                self._bytes.feed(self._tokenizer.decode([token]))
            ):
                if is_end:
                    self.done = True
                    self._cut()
                    break
                pieces += self._read(text)
        return pieces

    def finish(self) -> list[Piece]:
        """End the answer; return what had been held back."""
        held = self._spelled.flush() + self._bytes.flush()
        self.done = True
        return self._read(held)

    def _read(self, text: str) -> list[Piece]:
        if not self._answer:
            text = text.lstrip()  # of the space behind the label, and of empty lines
        self._answer += text
        return [Piece("answer", text)] if text else []

    def _cut(self) -> None:
        data = [self._tokenizer.decode([token]) for token in self._ids]
        kept, between = ids_before(self._ids, data, b"".join(data).find(_END.encode()))
        more = self._tokenizer.encode(between.decode(errors="ignore")) if between else []
        self._ids = [*kept, *more]

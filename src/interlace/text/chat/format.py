"""What a chat format is to the rest of the library, and what an answer is made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from interlace.text.chat.messages import Message

__all__ = ["Channel", "ChatFormat", "ChatParser", "Piece"]

Channel = Literal["answer", "reasoning", "call"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of an answer as it streams.

    Args:
        channel: "answer" is for the user, "reasoning" came before it, "call" is a tool call.
        text: never empty but for the first piece of a call, never half a character, never a mark.
            Of a call: its arguments.
        call: the id of the call; None in other channels.
    """

    channel: Channel
    text: str
    call: str | None = None


@runtime_checkable
class ChatParser(Protocol):
    """Takes the ids of one answer as they are drawn; made by `ChatFormat.parser`."""

    @property
    def done(self) -> bool:
        """Whether the answer has ended; ids that come later are not read."""

    @property
    def message(self) -> dict[str, Any]:
        """The answer so far, as a message."""

    @property
    def ids(self) -> list[int]:
        """The ids of the answer so far, without what ended it: what the model has said, exactly."""

    @property
    def closing(self) -> list[int]:
        """The ids that end the turn behind `ids`, whatever the answer left open."""

    def feed(self, ids: Iterable[int]) -> list[Piece]:
        """Read ids; return what is now certain to be text."""

    def finish(self) -> list[Piece]:
        """End the answer, also where no mark did; return what had been held back."""


@runtime_checkable
class ChatFormat(Protocol):
    """How turns are written for a model."""

    @property
    def name(self) -> str:
        """As in `FORMATS`."""

    @property
    def stop(self) -> tuple[int, ...]:
        """The ids that end an answer."""

    @property
    def opening(self) -> list[int]:
        """The ids that ask for an answer."""

    def begin(self, tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        """The ids before the first turn, with what the model may call; raises as `encode`."""

    def turns(self, messages: Sequence[Message], before: Sequence[Message] = ()) -> list[int]:
        """The ids of messages, as `check_messages` gives them, behind others.

        Args:
            messages: what is written; results of one answer's calls stand together.
            before: what was written already, of which a format may need the calls.

        Raises:
            InputError: a message that the format cannot write.
        """

    def encode(
        self, messages: Sequence[Message], *, tools: Sequence[dict[str, Any]] | None = None
    ) -> list[int]:
        """The prompt that asks for the next answer.

        Args:
            messages: the conversation, oldest first.
            tools: what the model may call, each as {"type": "function", "function": {...}}.

        Raises:
            InputError: messages that are none, or that this format cannot write.
        """

    def parser(self) -> ChatParser:
        """A reader of one answer."""

"""A conversation as messages, for people, and as ids, for a model and its cache.

    ids:  start  turn  opening answer closing  turn  opening answer closing ...
                       |- as the model drew it -|

The ids of an answer are kept as they were drawn: encoding its text again may give others, and a
cache that has read the drawn ones would then be of no use.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from interlace.text.chat.format import ChatFormat, ChatParser
from interlace.text.chat.messages import Message, check_messages

__all__ = ["Conversation"]


class Conversation:
    """Messages and their ids, one question and answer after the other.

    Args:
        chat: how turns are written.
        messages: what was said before, oldest first.
        tools: what the model may call.

    Raises:
        InputError: messages or tools that are none, or that the format cannot write.
    """

    def __init__(
        self,
        chat: ChatFormat,
        messages: Iterable[Message] = (),
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        self._chat = chat
        self.messages: list[dict[str, Any]] = check_messages(list(messages))
        self.ids = [*chat.begin(tools), *chat.turns(self.messages)]

    @property
    def open_calls(self) -> list[dict[str, Any]]:
        """The calls of the last answer, while their results are what comes next."""
        calls = self.messages[-1].get("tool_calls", []) if self.messages else []
        return [*calls]

    def ask(self, question: str | Sequence[Message]) -> list[int]:
        """The prompt that asks for an answer; nothing is kept before `add`.

        Args:
            question: what a user says, or messages, such as all results of the last answer's calls.

        Raises:
            InputError: no valid text, or messages that cannot stand here.
        """
        turns = self._chat.turns(self._asked(question), self.messages)
        return [*self.ids, *turns, *self._chat.opening]

    def add(self, question: str | Sequence[Message], answer: ChatParser) -> None:
        """Keep a question and its answer; with an answer of nothing, neither is kept.

        Args:
            question: as given to `ask`.
            answer: has read what the model drew.
        """
        if not answer.ids:
            return
        self.ids = [*self.ask(question), *answer.ids, *answer.closing]
        self.messages += [*self._asked(question), answer.message]

    def _asked(self, question: str | Sequence[Message]) -> list[dict[str, Any]]:
        asked = [{"role": "user", "content": question}] if isinstance(question, str) else question
        return check_messages([*self.messages, *asked])[len(self.messages) :]

"""A conversation as messages, for people, and as ids, for a model and its cache.

    ids:  start  turn  opening answer closing  turn  opening answer closing ...
                       |- as the model drew it -|

The ids of an answer are kept as they were drawn: encoding its text again may give others, and a
cache that has read the drawn ones would then be of no use.
"""

from collections.abc import Iterable
from typing import Any

from interlace.text.chat.format import ChatFormat, ChatParser
from interlace.text.chat.messages import Message, check_messages

__all__ = ["Conversation"]


class Conversation:
    """Messages and their ids, one question and answer after the other.

    Args:
        chat: how turns are written.
        messages: what was said before, oldest first.

    Raises:
        InputError: messages that are none, or that the format cannot write.
    """

    def __init__(self, chat: ChatFormat, messages: Iterable[Message] = ()) -> None:
        self._chat = chat
        self.messages: list[dict[str, Any]] = check_messages(list(messages))
        self.ids = [*chat.start]
        for message in self.messages:
            self.ids += chat.turn(message)

    def ask(self, content: str) -> list[int]:
        """The prompt that asks for an answer to `content`; nothing is kept before `add`.

        Raises:
            InputError: a content that is no valid text.
        """
        (question,) = check_messages([{"role": "user", "content": content}])
        return [*self.ids, *self._chat.turn(question), *self._chat.opening]

    def add(self, content: str, answer: ChatParser) -> None:
        """Keep a question and its answer; with an answer of nothing, neither is kept.

        Args:
            content: as given to `ask`.
            answer: has read what the model drew.
        """
        if not answer.ids:
            return
        self.ids = [*self.ask(content), *answer.ids, *self._chat.closing]
        self.messages += [{"role": "user", "content": content}, answer.message]

"""Chat formats: lists of messages to token ids, and token ids of an answer back to its parts.

    messages --encode--> ids --model--> ids --parser--> answer, reasoning, tool calls

`chat_format` finds the format of a tokenizer by its marks. Each fragment of a message is encoded by
itself, so that a user's text never becomes a mark, and the parser takes marks out of an answer
whether the model draws them or spells them. A format is one class beside `KimiLinearChat`, which
writes, and one that reads.
"""

from typing import Any

from interlace.errors import InputError
from interlace.text.chat.conversation import Conversation as Conversation
from interlace.text.chat.format import ChatFormat as ChatFormat
from interlace.text.chat.format import ChatParser as ChatParser
from interlace.text.chat.format import Piece as Piece
from interlace.text.chat.kimi_k3 import EFFORTS as EFFORTS
from interlace.text.chat.kimi_k3 import KimiK3Chat as KimiK3Chat
from interlace.text.chat.kimi_linear import KimiLinearChat as KimiLinearChat
from interlace.text.chat.messages import ROLES as ROLES
from interlace.text.chat.messages import Message as Message
from interlace.text.chat.messages import check_messages as check_messages
from interlace.text.chat.messages import check_tools as check_tools
from interlace.text.chat.plain import PlainChat as PlainChat
from interlace.text.tokenizer import Tokenizer

__all__ = [
    "EFFORTS",
    "FORMATS",
    "ROLES",
    "ChatFormat",
    "ChatParser",
    "Conversation",
    "KimiK3Chat",
    "KimiLinearChat",
    "Message",
    "Piece",
    "PlainChat",
    "chat_format",
    "check_messages",
    "check_tools",
]

FORMATS: dict[str, type[KimiLinearChat] | type[KimiK3Chat] | type[PlainChat]] = {
    KimiLinearChat.name: KimiLinearChat,
    KimiK3Chat.name: KimiK3Chat,
    PlainChat.name: PlainChat,
}
"""Every format by its name."""


def chat_format(tokenizer: Tokenizer, name: str | None = None, **options: Any) -> ChatFormat:
    """The format that a model was trained on, or the one called `name`.

    Args:
        tokenizer: its marks say which format it is.
        name: one of `FORMATS`; None looks at the marks.
        **options: of `KimiK3Chat`: `thinking` and `effort`; other formats have none.

    Raises:
        InputError: an unknown name, marks that the format needs and the tokenizer lacks, None for
            a tokenizer without the marks of any format, or an option that the format has not.
    """
    if name is not None and name not in FORMATS:
        raise InputError(f"a chat format must be one of {', '.join(FORMATS)}, got {name!r}.")
    found = name or next(
        (kind.name for kind in (KimiLinearChat, KimiK3Chat) if kind.fits(tokenizer)), None
    )
    if found is None:
        raise InputError(
            "the model has no chat format: its tokenizer has none of the marks that a turn is "
            f"written with; the format {PlainChat.name!r} writes turns as text, which only suits a "
            "model that has seen such text."
        )
    if found == KimiK3Chat.name:
        return KimiK3Chat(tokenizer, **options)
    if options:
        raise InputError(
            f"the chat format {found} has no {' and no '.join(options)}; only {KimiK3Chat.name} "
            "does."
        )
    return FORMATS[found](tokenizer)

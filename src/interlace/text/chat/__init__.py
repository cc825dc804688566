"""Chat formats: lists of messages to token ids, and token ids of an answer back to its parts.

    messages --encode--> ids --model--> ids --parser--> answer, reasoning, tool calls

`chat_format` finds the format of a tokenizer by its marks. Each fragment of a message is encoded by
itself, so that a user's text never becomes a mark, and the parser takes marks out of an answer
whether the model draws them or spells them. A format is one class beside `KimiLinearChat`.
"""

from interlace.errors import InputError
from interlace.text.chat.conversation import Conversation as Conversation
from interlace.text.chat.format import ChatFormat as ChatFormat
from interlace.text.chat.format import ChatParser as ChatParser
from interlace.text.chat.format import Piece as Piece
from interlace.text.chat.kimi_linear import KimiLinearChat as KimiLinearChat
from interlace.text.chat.messages import ROLES as ROLES
from interlace.text.chat.messages import Message as Message
from interlace.text.chat.messages import check_messages as check_messages
from interlace.text.chat.plain import PlainChat as PlainChat
from interlace.text.tokenizer import Tokenizer

__all__ = [
    "FORMATS",
    "ROLES",
    "ChatFormat",
    "ChatParser",
    "Conversation",
    "KimiLinearChat",
    "Message",
    "Piece",
    "PlainChat",
    "chat_format",
    "check_messages",
]

FORMATS: dict[str, type[KimiLinearChat] | type[PlainChat]] = {
    KimiLinearChat.name: KimiLinearChat,
    PlainChat.name: PlainChat,
}
"""Every format by its name."""


def chat_format(tokenizer: Tokenizer, name: str | None = None) -> ChatFormat:
    """The format that a model was trained on, or the one called `name`.

    Args:
        tokenizer: its marks say which format it is.
        name: one of `FORMATS`; None looks at the marks.

    Raises:
        InputError: an unknown name, marks that the format needs and the tokenizer lacks, or None
            for a tokenizer without the marks of any format.
    """
    if name is not None:
        if name not in FORMATS:
            raise InputError(f"a chat format must be one of {', '.join(FORMATS)}, got {name!r}.")
        return FORMATS[name](tokenizer)
    if KimiLinearChat.fits(tokenizer):
        return KimiLinearChat(tokenizer)
    raise InputError(
        "the model has no chat format: its tokenizer has none of the marks that a turn is written "
        f"with; the format {PlainChat.name!r} writes turns as text, which only suits a model that "
        "has seen such text."
    )

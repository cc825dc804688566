"""From a prompt as a user gives it to checked token ids."""

from collections.abc import Sequence
from operator import index
from typing import Any

from interlace.config import HybridConfig
from interlace.errors import InputError
from interlace.models import HybridLM
from interlace.text import ByteTokenizer, Tokenizer

__all__ = ["Prompt", "checked_ids", "ids_of", "is_many", "tokenizer_of"]

# a vocabulary of bytes and a few marks; what is larger comes with a tokenizer of its own
_LARGEST_BYTE_VOCAB = 512

Prompt = str | bytes | Sequence[int]
"""Text, bytes, or token ids."""


def tokenizer_of(lm: HybridLM) -> Tokenizer | None:
    """The model's own tokenizer, else bytes for a vocabulary of bytes and marks, else None."""
    config = lm.config
    if lm.tokenizer is not None:
        own: Tokenizer = lm.tokenizer
        return own
    if 256 <= config.vocab_size <= _LARGEST_BYTE_VOCAB:
        return ByteTokenizer(config.vocab_size, config.bos_token_id, config.eos_token_id)
    return None


def is_many(prompt: Any) -> bool:
    """Whether this is a list of prompts: what it holds is no id."""
    if isinstance(prompt, str | bytes) or len(prompt) == 0:
        return False
    first = prompt[0]
    return isinstance(first, str | bytes) or hasattr(first, "__len__")


def ids_of(
    prompt: Prompt, tokenizer: Tokenizer | None, config: HybridConfig, name: str
) -> list[int]:
    """The ids of a prompt: of text with the start mark in front, others as they are."""
    if len(prompt) == 0:
        raise InputError(f"{name} must not be empty; give at least one character or token.")
    if not isinstance(prompt, str | bytes):
        return checked_ids(prompt, config.vocab_size)
    if tokenizer is None:
        raise InputError(
            "text can be given only to a model with a tokenizer, and this one has none; give token "
            "ids, or set lm.tokenizer (interlace.text.ByteTokenizer reads bytes)."
        )
    return checked_ids([*tokenizer.prefix, *tokenizer.encode(prompt)], config.vocab_size)


def checked_ids(data: Sequence[object], vocab_size: int) -> list[int]:
    """Token ids as integers, each in the vocabulary.

    Raises:
        InputError: names the first that is not, and its position.
    """
    ids = []
    for place, value in enumerate(data):
        try:
            token = index(value)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(
                f"token ids must be integers, got {value!r} at position {place}."
            ) from None
        ids.append(token)
        if not 0 <= token < vocab_size:
            raise InputError(
                f"token ids must lie in 0..{vocab_size - 1}, got {token} at position {place}."
            )
    return ids

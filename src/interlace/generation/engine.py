"""Prompts in, text out: what a user calls.

prompt --encode--> ids --chunks--> lm(cache) --last logits--> sampler --id--> bytes --> text
^                          |
'---------- id ------------'
"""

from collections.abc import Sequence
from typing import Any, Unpack, cast, overload

from interlace.errors import InputError
from interlace.generation.batch import Progress
from interlace.generation.options import SamplingKeywords, SamplingOptions, options_for_rows
from interlace.generation.prompt_cache import PromptCache
from interlace.generation.prompts import Prompt, is_many
from interlace.generation.streams import BatchStream, TextStream
from interlace.models import HybridLM

__all__ = ["generate", "stream", "stream_batch"]


@overload
def generate(  # type: ignore[overload-overlap]
    lm: HybridLM,
    prompt: Prompt,
    *,
    options: SamplingOptions | None = None,
    prefill_chunk: int | None = None,
    batch_size: int | None = None,
    cache: PromptCache | None = None,
    **sampling: Unpack[SamplingKeywords],
) -> str: ...


@overload
def generate(
    lm: HybridLM,
    prompt: Sequence[str] | Sequence[bytes] | Sequence[Sequence[int]],
    *,
    options: SamplingOptions | Sequence[SamplingOptions] | None = None,
    prefill_chunk: int | None = None,
    batch_size: int | None = None,
    cache: PromptCache | None = None,
    **sampling: Unpack[SamplingKeywords],
) -> list[str]: ...


def generate(
    lm: HybridLM,
    prompt: Any,
    *,
    options: SamplingOptions | Sequence[SamplingOptions] | None = None,
    prefill_chunk: int | None = None,
    batch_size: int | None = None,
    cache: PromptCache | None = None,
    **sampling: Unpack[SamplingKeywords],
) -> str | list[str]:
    """Continue one prompt, or each of a list of prompts; return the new text only.

    Arguments and errors are those of `stream` and `stream_batch`, and so is the text, to the
    character. A list of prompts gives a list of texts, each what its prompt gives alone.
    """
    if not is_many(prompt):
        one = cast(SamplingOptions | None, options)
        return "".join(
            stream(lm, prompt, options=one, prefill_chunk=prefill_chunk, cache=cache, **sampling)
        )
    if cache is not None:
        raise InputError("cache must be used by one prompt, got a list; give them one by one.")
    batch = stream_batch(
        lm,
        prompt,
        options=options,
        prefill_chunk=prefill_chunk,
        batch_size=batch_size,
        **sampling,
    )
    for _ in batch:
        pass
    return [result.text for result in batch.results]


def stream(
    lm: HybridLM,
    prompt: Prompt,
    *,
    options: SamplingOptions | None = None,
    prefill_chunk: int | None = None,
    cache: PromptCache | None = None,
    progress: Progress | None = None,
    **sampling: Unpack[SamplingKeywords],
) -> "TextStream":
    """Continue `prompt`, giving text as it is made.

    Args:
        lm: the model. `lm.tokenizer` turns text into ids; where it is None, a vocabulary of bytes
            and marks (256 to 512 ids) is read as bytes, and any other takes ids only.
        prompt: text, bytes, or token ids. Text gets the start mark of the tokenizer in front, ids
            are taken as they are.
        options: how to draw and when to stop; the defaults when None.
        prefill_chunk: prompt tokens per call of the model; by default 512, less where memory is
            short. It changes speed and memory, and the logits by rounding only.
        cache: a prompt cache. What it shares with the prompt is not read again, and it is extended
            by what is read and made.
        progress: called with (tokens read, tokens of the prompt) after each chunk.
        **sampling: fields of `SamplingOptions` that differ from `options`: `max_tokens=64`,
            `temperature=0.0`, `top_p=1.0`, `seed=0`, `stop=None` and others.

    Returns:
        An iterator of pieces of text, none empty and none with half a character; its `result` holds
        the token ids and the numbers.

    Raises:
        InputError: an empty prompt, an id out of range, an option out of range.
        MemoryLimitError: cache, state and activations do not fit in what the machine can give.
    """
    return TextStream(
        lm,
        prompt,
        options_for_rows(1, options, sampling)[0],
        prefill_chunk=prefill_chunk,
        cache=cache,
        progress=progress,
    )


def stream_batch(
    lm: HybridLM,
    prompts: Sequence[Prompt],
    *,
    options: SamplingOptions | Sequence[SamplingOptions] | None = None,
    prefill_chunk: int | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
    **sampling: Unpack[SamplingKeywords],
) -> "BatchStream":
    """Continue several prompts together, giving text as it is made.

    Args:
        lm: as for `stream`.
        prompts: each text, bytes or ids, of any lengths.
        options: for all prompts, or one for each. One seed for all means seed + i for prompt i.
        prefill_chunk: prompt tokens per row and call of the model.
        batch_size: rows at a time; by default up to 32, fewer where memory is short.
        progress: called with (tokens read, tokens of all prompts) after each chunk.
        **sampling: fields of `SamplingOptions`; `seed` may be a list, one for each prompt.

    Returns:
        An iterator of (number of the prompt, piece of text); its `results` hold the numbers.

    Raises:
        InputError: as `stream`, with the number of the prompt.
        MemoryLimitError: as `stream`.
    """
    each = options_for_rows(len(prompts), options, sampling)
    return BatchStream(
        lm,
        prompts,
        each,
        prefill_chunk=prefill_chunk,
        batch_size=batch_size,
        progress=progress,
    )

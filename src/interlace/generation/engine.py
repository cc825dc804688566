"""One prompt in, text out: prefill in chunks, then one token at a time through the cache.

    prompt --encode--> ids --chunks--> lm(cache) --last logits--> sampler --id--> bytes --> text
                                          ^                          |
                                          '---------- id ------------'

Everything that can be refused is refused when a stream is made, before the model has run. The
cache reserves prompt + max_tokens, so that it never grows on the way and its bytes are those of the
formula.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import index
from time import perf_counter

import torch

from interlace.config import HybridConfig
from interlace.errors import InputError
from interlace.generation.context import (
    choose_chunk,
    expanded_bytes,
    require_context,
)
from interlace.generation.memory import Available, available
from interlace.generation.result import GenerationResult
from interlace.generation.sampling import Sampler, check_sampling, is_integer
from interlace.models import HybridLM
from interlace.text import ByteTokenizer, Utf8Stream

__all__ = ["TextStream", "check_options", "generate", "stream"]

# a vocabulary of bytes and a few marks; what is larger comes with a tokenizer of its own
_LARGEST_BYTE_VOCAB = 512

Prompt = str | bytes | Sequence[int]
Progress = Callable[[int, int], None]


def generate(
    lm: HybridLM,
    prompt: Prompt,
    *,
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    prefill_chunk: int | None = None,
    ignore_eos: bool = False,
) -> str:
    """Continue `prompt`; return the new text only.

    Arguments and errors are those of `stream`, and so is the text, to the character.
    """
    return "".join(
        stream(
            lm,
            prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            prefill_chunk=prefill_chunk,
            ignore_eos=ignore_eos,
        )
    )


def stream(
    lm: HybridLM,
    prompt: Prompt,
    *,
    max_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    prefill_chunk: int | None = None,
    ignore_eos: bool = False,
    progress: Progress | None = None,
) -> "TextStream":
    """Continue `prompt`, giving text as it is made.

    Args:
        lm: the model. `lm.tokenizer` turns text into ids; where it is None, a vocabulary of bytes
            and marks (256 to 512 ids) is read as bytes, and any other takes ids only.
        prompt: text, bytes, or token ids. Text gets the start mark of the tokenizer in front, ids
            are taken as they are.
        max_tokens: new tokens at most, at least 1.
        temperature: 0 takes the most likely token.
        top_p: draw from the smallest set of likely tokens that holds this share.
        seed: of the draws.
        prefill_chunk: prompt tokens per call of the model; by default 512, less where memory is
            short. It changes speed and memory, and the logits by rounding only.
        ignore_eos: never draw the end mark, so that `max_tokens` tokens are made.
        progress: called with (tokens read, tokens of the prompt) after each chunk.

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
        max_tokens=max_tokens,
        sampler=Sampler(temperature, top_p, seed),
        prefill_chunk=prefill_chunk,
        ignore_eos=ignore_eos,
        progress=progress,
    )


def check_options(
    config: HybridConfig,
    *,
    max_tokens: object,
    temperature: object = 0.0,
    top_p: object = 1.0,
    seed: object = 0,
    prefill_chunk: object = None,
) -> None:
    """Refuse options that mean nothing, before a model is loaded for them.

    Types are checked too, whatever the caller passed.

    Raises:
        InputError: names the option, what it must be and what came.
    """
    check_sampling(temperature, top_p, seed)
    if not is_integer(max_tokens) or max_tokens < 1:
        raise InputError(f"max_tokens must be at least 1, got {max_tokens!r}.")
    if max_tokens >= config.max_position_embeddings:
        raise _too_long(config, max_tokens)
    if prefill_chunk is not None and (not is_integer(prefill_chunk) or prefill_chunk < 1):
        raise InputError(f"prefill_chunk must be at least 1, got {prefill_chunk!r}.")


class TextStream(Iterator[str]):
    """Pieces of new text; made by `stream`, whose docstring says what the arguments mean."""

    def __init__(
        self,
        lm: HybridLM,
        prompt: Prompt,
        *,
        max_tokens: int,
        sampler: Sampler,
        prefill_chunk: int | None = None,
        ignore_eos: bool = False,
        progress: Progress | None = None,
    ) -> None:
        config = lm.config
        check_options(config, max_tokens=max_tokens, prefill_chunk=prefill_chunk)
        tokenizer = tokenizer_of(lm)
        data = _as_bytes(prompt, tokenizer)
        if len(data) == 0:
            raise InputError("the prompt must not be empty; give at least one character or token.")
        prefix = tokenizer.prefix if tokenizer and isinstance(data, bytes) else []
        num_prompt = len(prefix) + len(data)
        self._capacity = num_prompt + max_tokens
        if self._capacity > config.max_position_embeddings:
            raise _too_long(config, max_tokens, num_prompt)

        weight = lm.lm_head.weight
        dtype = str(weight.dtype).removeprefix("torch.")
        limit = _limit(weight.device)
        self._chunk = prefill_chunk or choose_chunk(config, self._capacity, dtype, limit)
        self._chunk = min(self._chunk, num_prompt)
        require_context(config, self._capacity, self._chunk, dtype, limit)

        self._lm = lm
        self._tokenizer = tokenizer
        self._prompt = prefix + _checked_ids(data, config.vocab_size)
        self._max_tokens = max_tokens
        self._sampler = sampler
        self._progress = progress
        self._eos = tokenizer.eos if tokenizer else config.eos_token_id
        self._banned = _banned(tokenizer, config, ignore_eos)
        self._device = weight.device
        self._expanded = expanded_bytes(config, self._capacity, dtype)
        self.cache = lm.new_cache(1, capacity=self._capacity)
        self._new: list[int] = []
        self._finish: str | None = None
        self._prefill_seconds = 0.0
        self._decode_seconds = 0.0
        self._pieces = self._run()

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def result(self) -> GenerationResult:
        """The numbers so far; final once the stream has ended."""
        return GenerationResult(
            token_ids=tuple(self._new),
            finish_reason=self._finish,
            prompt_tokens=len(self._prompt),
            new_tokens=len(self._new),
            prefill_seconds=self._prefill_seconds,
            decode_seconds=self._decode_seconds,
            latent_bytes=self.cache.latent_bytes,
            state_bytes=self.cache.state_bytes,
            cached_tokens=int(self.cache.lengths[0]),
            capacity=self.cache.capacity or self._capacity,
            expanded_bytes=self._expanded,
            prefill_chunk=self._chunk,
        )

    def _run(self) -> Iterator[str]:
        characters = Utf8Stream()
        start = perf_counter()
        token = self._read_prompt()
        self._prefill_seconds = perf_counter() - start
        while True:
            self._new.append(token)
            if token == self._eos:
                self._finish = "stop"
            elif len(self._new) == self._max_tokens:
                self._finish = "length"
            if self._tokenizer is not None:
                piece = characters.feed(self._tokenizer.decode([token]))
                if piece:
                    yield piece
            if self._finish:
                break
            start = perf_counter()
            token = self._step([token])
            self._decode_seconds += perf_counter() - start
        tail = characters.flush()
        if tail:
            yield tail

    def _read_prompt(self) -> int:
        total = len(self._prompt)
        for first in range(0, total - self._chunk, self._chunk):
            self._forward(self._prompt[first : first + self._chunk])
            if self._progress:
                self._progress(first + self._chunk, total)
        last = (total - 1) // self._chunk * self._chunk
        token = self._step(self._prompt[last:])
        if self._progress:
            self._progress(total, total)
        return token

    @torch.inference_mode()
    def _forward(self, ids: Sequence[int]) -> torch.Tensor:
        tokens = torch.tensor([ids], dtype=torch.int64, device=self._device)
        logits: torch.Tensor = self._lm(tokens, cache=self.cache, last_only=True)
        return logits[0, -1]

    @torch.inference_mode()
    def _step(self, ids: Sequence[int]) -> int:
        return self._sampler.pick(self._forward(ids), self._banned)


def tokenizer_of(lm: HybridLM) -> ByteTokenizer | None:
    """The model's own tokenizer, else bytes for a vocabulary of bytes and marks, else None."""
    config = lm.config
    if lm.tokenizer is not None:
        own: ByteTokenizer = lm.tokenizer
        return own
    if 256 <= config.vocab_size <= _LARGEST_BYTE_VOCAB:
        return ByteTokenizer(config.vocab_size, config.bos_token_id, config.eos_token_id)
    return None


def _as_bytes(prompt: Prompt, tokenizer: ByteTokenizer | None) -> bytes | Sequence[int]:
    """Text as bytes, which are its ids; ids as they are. The length is known without a list."""
    if not isinstance(prompt, str | bytes):
        return prompt
    if tokenizer is None:
        raise InputError(
            "text can be given only to a model with a tokenizer, and this one has none; give token "
            "ids, or set lm.tokenizer (interlace.text.ByteTokenizer reads bytes)."
        )
    return tokenizer.to_bytes(prompt)


def _checked_ids(data: Sequence[object], vocab_size: int) -> list[int]:
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


def _banned(
    tokenizer: ByteTokenizer | None, config: HybridConfig, ignore_eos: bool
) -> torch.Tensor | None:
    """Which ids are never drawn: those without text, and the end mark when it is ignored."""
    ids = tokenizer.silent(keep_eos=not ignore_eos) if tokenizer else []
    if tokenizer is None and ignore_eos and config.eos_token_id is not None:
        ids = [config.eos_token_id]
    if not ids:
        return None
    banned = torch.zeros(config.vocab_size, dtype=torch.bool)
    banned[ids] = True
    return banned


def _limit(device: torch.device) -> Available | None:
    if device.type == "cuda":
        return Available(torch.cuda.mem_get_info(device)[0], f"the GPU ({device})")
    return available()


def _too_long(config: HybridConfig, max_tokens: int, num_prompt: int = 1) -> InputError:
    return InputError(
        f"prompt and max_tokens must fit in the model's {config.max_position_embeddings:,} tokens, "
        f"got {num_prompt:,} + {max_tokens:,}; shorten one of them."
    )

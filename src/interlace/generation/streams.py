"""Streams of new text: of one prompt, and of several that run together.

Everything that can be refused is refused when a stream is made, before the model has run. The
cache reserves prompt + max_tokens, so that it never grows on the way and its bytes are those of the
formula. More prompts than rows of a batch run in groups of similar length.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch

from interlace.caches import HybridCache
from interlace.errors import InputError
from interlace.generation import memory
from interlace.generation.batch import Batch, Progress
from interlace.generation.context import (
    choose_batch,
    choose_chunk,
    expanded_bytes,
    require_context,
)
from interlace.generation.options import SamplingOptions, is_integer, too_long
from interlace.generation.prompt_cache import PromptCache
from interlace.generation.prompts import Prompt, ids_of, tokenizer_of
from interlace.generation.result import GenerationResult
from interlace.generation.row import Row
from interlace.models import HybridLM

__all__ = ["BatchStream", "TextStream", "check_sizes", "limit_of"]

# numbers of a cache that a result repeats
_OF_CACHE = (
    "reused_tokens",
    "latent_bytes",
    "state_bytes",
    "capacity",
    "expanded_bytes",
    "batch_size",
    "expert_bytes_read",
)


class BatchStream(Iterator[tuple[int, str]]):
    """Pieces of the texts of several prompts, as they come; made by `stream_batch`."""

    def __init__(
        self,
        lm: HybridLM,
        prompts: Sequence[Prompt],
        options: Sequence[SamplingOptions],
        *,
        prefill_chunk: int | None = None,
        batch_size: int | None = None,
        cache: PromptCache | None = None,
        progress: Progress | None = None,
    ) -> None:
        check_sizes(prefill_chunk=prefill_chunk, batch_size=batch_size)
        if len(prompts) == 0:
            raise InputError("the prompt must not be empty; give at least one.")
        config, tokenizer = lm.config, tokenizer_of(lm)
        self._rows = []
        for number, (prompt, one) in enumerate(zip(prompts, options, strict=True)):
            one.check_for(config)
            name = "the prompt" if len(prompts) == 1 else f"prompt {number}"
            ids = ids_of(prompt, tokenizer, config, name)
            if len(ids) + one.max_tokens > config.max_position_embeddings:
                raise too_long(config, one.max_tokens, len(ids))
            if one.stop_strings and tokenizer is None:
                raise InputError(
                    "stop strings need a model with a tokenizer, and this one has none; give "
                    "stop_tokens, or set lm.tokenizer."
                )
            self._rows.append(Row(ids, one, config, tokenizer))

        weight = lm.lm_head.weight
        dtype = str(weight.dtype).removeprefix("torch.")
        limit = limit_of(weight.device)
        capacity = _capacity(self._rows)
        self.batch_size = batch_size or choose_batch(
            config, len(self._rows), capacity, dtype, limit
        )
        self.batch_size = min(self.batch_size, len(self._rows))
        self.prefill_chunk = prefill_chunk or choose_chunk(
            config, capacity, dtype, limit, self.batch_size
        )
        self.prefill_chunk = min(self.prefill_chunk, max(len(row.prompt) for row in self._rows))
        held = 0
        if cache is not None and cache.cache.capacity >= capacity:
            held = cache.cache.latent_bytes + cache.cache.state_bytes
        require_context(
            config,
            capacity,
            self.prefill_chunk,
            dtype,
            limit,
            batch=self.batch_size,
            held=held,
        )
        self._lm, self._dtype, self._memory, self._progress = lm, dtype, cache, progress
        # rows of similar length share a group, so that little of it is padding
        order = sorted(range(len(self._rows)), key=lambda number: len(self._rows[number].prompt))
        self._groups = [
            order[first : first + self.batch_size]
            for first in range(0, len(order), self.batch_size)
        ]
        self._batch: Batch | None = None
        self._read_before = 0
        self._kept: dict[int, dict[str, Any]] = {}
        self._pieces = self._run()

    def __next__(self) -> tuple[int, str]:
        return next(self._pieces)

    @property
    def cache(self) -> HybridCache | None:
        """The cache of the rows that are running, or ran last; None before the first call."""
        return None if self._batch is None else self._batch.cache

    @property
    def texts(self) -> list[str]:
        """The text of each prompt so far; after the end or `close`, with what was held back."""
        return [row.text for row in self._rows]

    @property
    def results(self) -> list[GenerationResult]:
        """The numbers of each prompt so far; final once the stream has ended."""
        return [self._result(number) for number in range(len(self._rows))]

    def close(self) -> None:
        """End the stream now. Rows that were not done end as "interrupt" and keep what they have.

        The cache is whole: calls of the model are never cut. Closing twice does nothing.
        """
        self._pieces.close()
        self._end_rows()

    def _end_rows(self) -> None:
        for row in self._rows:
            if not row.done:
                row.finish("interrupt")

    def _run(self) -> Generator[tuple[int, str], None, None]:
        done = 0
        every = sum(len(row.prompt) for row in self._rows)
        try:
            for group in self._groups:
                self._batch = None  # the cache before goes before the next one comes
                rows = [self._rows[number] for number in group]
                self._read_before = _bytes_read(self._lm)
                self._batch = Batch(
                    self._lm,
                    rows,
                    chunk=self.prefill_chunk,
                    capacity=_capacity(rows),
                    memory=self._memory,
                )
                numbers = {id(row): number for row, number in zip(rows, group, strict=True)}

                def progress(read: int, _total: int, done: int = done) -> None:
                    if self._progress:
                        self._progress(done + read, every)

                for row, piece in self._batch.run(progress):
                    if piece:
                        yield numbers[id(row)], piece
                for number in group:
                    self._kept[number] = self._of_cache(self._batch)
                done += sum(len(row.prompt) for row in rows)
        except KeyboardInterrupt:
            self._end_rows()
            raise

    def _of_cache(self, batch: Batch) -> dict[str, Any]:
        rows = len(batch.rows)
        capacity = batch.cache.capacity or _capacity(batch.rows)
        return {
            "reused_tokens": batch.reused,
            "latent_bytes": batch.cache.latent_bytes // rows,
            "state_bytes": batch.cache.state_bytes // rows,
            "capacity": capacity,
            "expanded_bytes": expanded_bytes(self._lm.config, capacity, self._dtype),
            "batch_size": rows,
            "expert_bytes_read": (_bytes_read(self._lm) - self._read_before) // rows,
        }

    def _result(self, number: int) -> GenerationResult:
        row, batch = self._rows[number], self._batch
        if number in self._kept:
            numbers = self._kept[number]
        elif batch is not None and any(row is other for other in batch.rows):
            numbers = self._of_cache(batch)
        else:
            numbers = dict.fromkeys(_OF_CACHE, 0)
        return GenerationResult(
            text=row.text,
            token_ids=tuple(row.new),
            finish_reason=row.finish_reason,
            stopped_by=row.stopped_by,
            logprobs=None if row.options.logprobs is None else tuple(row.logprobs),
            prompt_tokens=len(row.prompt),
            new_tokens=len(row.new),
            prefill_seconds=row.prefill_seconds,
            decode_seconds=row.decode_seconds,
            cached_tokens=row.fed,
            prefill_chunk=self.prefill_chunk,
            **numbers,
        )


class TextStream(Iterator[str]):
    """Pieces of new text; made by `stream`, whose docstring says what the arguments mean."""

    def __init__(
        self,
        lm: HybridLM,
        prompt: Prompt,
        options: SamplingOptions,
        *,
        prefill_chunk: int | None = None,
        cache: PromptCache | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._batch = BatchStream(
            lm, [prompt], [options], prefill_chunk=prefill_chunk, cache=cache, progress=progress
        )

    def __next__(self) -> str:
        return next(self._batch)[1]

    @property
    def cache(self) -> HybridCache | None:
        """The model's cache; None before the first call."""
        return self._batch.cache

    @property
    def text(self) -> str:
        """All text so far; after the end or `close`, with what was held back."""
        return self._batch.texts[0]

    @property
    def result(self) -> GenerationResult:
        """The numbers so far; final once the stream has ended."""
        return self._batch.results[0]

    def close(self) -> None:
        """End the stream now, as "interrupt" if it was not done; text and cache stay whole."""
        self._batch.close()


def check_sizes(*, prefill_chunk: object = None, batch_size: object = None) -> None:
    """Refuse sizes of calls that mean nothing, whatever type the caller passed.

    Raises:
        InputError: names the size, what it must be and what came.
    """
    for name, value in (("prefill_chunk", prefill_chunk), ("batch_size", batch_size)):
        if value is not None and (not is_integer(value) or value < 1):
            raise InputError(f"{name} must be at least 1 and an integer, got {value!r}.")


def limit_of(device: torch.device) -> memory.Available | None:
    """What the device of a model can still give."""
    if device.type == "cuda":
        return memory.Available(torch.cuda.mem_get_info(device)[0], f"the GPU ({device})")
    return memory.available()


def _bytes_read(lm: HybridLM) -> int:
    return 0 if lm.expert_cache is None else lm.expert_cache.bytes_read


def _capacity(rows: Sequence[Row]) -> int:
    """Tokens to reserve per row: rows decode behind the longest prompt, padding counted."""
    return max(len(row.prompt) for row in rows) + max(row.options.max_tokens for row in rows)

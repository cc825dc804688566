"""Rows that are read and decoded together, in one cache.

    prompts   a b c d e f g      read chunk by chunk, right-padded: [abc|xyz], [def|w..], [g..|...]
              x y z w            a row takes its first token when its prompt ends,
    then      one token for each row that is not done, per call of the model

A row's tokens, text and state are those of the row alone, whatever its neighbours and the chunk:
padding is masked in every layer, and each row draws from a generator of its own.
"""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import torch

from interlace.generation.interrupt import whole_call
from interlace.generation.prompt_cache import PromptCache
from interlace.generation.row import Row
from interlace.models import HybridLM
from interlace.shapes import Float, Tensor

__all__ = ["Batch", "Progress"]

Progress = Callable[[int, int], None]


class Batch:
    """Rows in one cache, from their prompts to their last tokens.

    Args:
        lm: the model.
        rows: prompts and options.
        chunk: prompt tokens per row and call.
        capacity: tokens to reserve per row.
        memory: a prompt cache that the only row uses and extends; else a new cache is made.
    """

    def __init__(
        self,
        lm: HybridLM,
        rows: Sequence[Row],
        *,
        chunk: int,
        capacity: int,
        memory: PromptCache | None = None,
    ) -> None:
        self.rows = rows
        self.reused = 0
        self._lm = lm
        self._chunk = chunk
        self._memory = memory
        self._device = lm.lm_head.weight.device
        if memory is None:
            self.cache = lm.new_cache(len(rows), capacity=capacity)
        else:
            self.reused = memory.reuse(rows[0].prompt, capacity)
            self.cache = memory.cache
            rows[0].fed = self.reused

    def run(self, progress: Progress | None = None) -> Iterator[tuple[Row, str]]:
        """Read all prompts, then decode until every row is done; gives the text as it is made.

        Args:
            progress: called with (tokens read, tokens of all prompts) after each chunk.
        """
        yield from self._read(progress)
        while not all(row.done for row in self.rows):
            yield from self._step()

    def _read(self, progress: Progress | None) -> Iterator[tuple[Row, str]]:
        total, longest = (f(len(row.prompt) for row in self.rows) for f in (sum, max))
        place, seconds = self.reused, 0.0
        while place < longest:
            # chunks end at multiples of their size, wherever a reused prefix ends
            end = min((place // self._chunk + 1) * self._chunk, longest)
            start = perf_counter()
            logits = self._call([row.prompt[place:end] for row in self.rows])
            seconds += perf_counter() - start
            for number, row in enumerate(self.rows):
                if not place < len(row.prompt) <= end:
                    continue
                start = perf_counter()
                wanted = row.options.max_tokens > 0
                piece = row.accept(logits[number]) if wanted else row.finish("length")
                seconds += perf_counter() - start
                row.prefill_seconds = seconds
                yield row, piece
            place = end
            if progress:
                progress(sum(min(place, len(row.prompt)) for row in self.rows), total)

    def _step(self) -> Iterator[tuple[Row, str]]:
        start = perf_counter()
        running = [row for row in self.rows if not row.done]
        logits = self._call([[] if row.done else row.new[-1:] for row in self.rows])
        accepted = [
            (row, row.accept(logits[number]))
            for number, row in enumerate(self.rows)
            if not row.done
        ]
        seconds = perf_counter() - start
        for row in running:
            row.decode_seconds += seconds
        yield from accepted

    @torch.inference_mode()
    def _call(self, parts: Sequence[Sequence[int]]) -> Float[Tensor, "rows vocab"]:
        """One call of the model; the logits after the last token of each row that has any."""
        sizes = [len(part) for part in parts]
        width = max(sizes)
        padded = [[*part, *[0] * (width - len(part))] for part in parts]
        tokens = torch.tensor(padded, dtype=torch.int64, device=self._device)
        # rows that agree need no mask
        lengths = None if min(sizes) == width else sizes
        with whole_call():
            logits: Tensor = self._lm(tokens, cache=self.cache, lengths=lengths, last_only=True)
            for row, size in zip(self.rows, sizes, strict=True):
                row.fed += size
            if self._memory is not None:
                self._memory.fed(parts[0])
        return logits[:, -1].to("cpu")

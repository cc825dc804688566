"""How likely a text is under a model, token by token, and nothing drawn.

    ids       b  c0 c1 c2 t0 t1 t2      b: the start mark, c: context, t: what is scored
    fed       b  c0 c1 c2 t0 t1         in chunks through a cache, rows of any lengths together
    scored                t0 t1 t2      each from the logits of the token before it

The first id of a row has nothing before it and cannot be scored. Log-probabilities are natural
ones, of a softmax in float64, as in `interlace.generation.sampling`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast, overload

import torch

from interlace.errors import InputError
from interlace.generation.context import choose_batch, choose_chunk, require_context
from interlace.generation.interrupt import whole_call
from interlace.generation.options import too_long
from interlace.generation.prompts import Prompt, checked_ids, ids_of, is_many, tokenizer_of
from interlace.generation.sampling import require_finite
from interlace.generation.streams import check_sizes, limit_of
from interlace.models import HybridLM
from interlace.text import Tokenizer

__all__ = ["Score", "loglikelihood"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What a model gives to one text.

    Args:
        token_ids: the ids that were scored.
        logprobs: the natural log-probability of each, given everything before it.
        greedy: each of them is the most likely id at its place.
        num_bytes: of the text they spell; 0 without a tokenizer.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: bool
    num_bytes: int

    @property
    def logprob(self) -> float:
        """Of the whole text: the sum; 0 for an empty one."""
        return math.fsum(self.logprobs)

    @property
    def perplexity(self) -> float | None:
        """From the mean negative log-probability of a token; None without tokens."""
        if not self.logprobs:
            return None
        mean = -self.logprob / len(self.logprobs)
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Bits over bytes of the text; None without bytes."""
        return -self.logprob / math.log(2) / self.num_bytes if self.num_bytes else None


class _Text(NamedTuple):
    """Ids, and the place from which they are scored, at least 1."""

    ids: list[int]
    start: int


@overload
def loglikelihood(  # type: ignore[overload-overlap]
    lm: HybridLM,
    text: Prompt,
    *,
    context: Prompt | None = None,
    prefill_chunk: int | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Score: ...


@overload
def loglikelihood(
    lm: HybridLM,
    text: Sequence[Prompt],
    *,
    context: Sequence[Prompt] | None = None,
    prefill_chunk: int | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Score]: ...


def loglikelihood(
    lm: HybridLM,
    text: Prompt | Sequence[Prompt],
    *,
    context: Prompt | Sequence[Prompt] | None = None,
    prefill_chunk: int | None = None,
    batch_size: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Score | list[Score]:
    """Score a text, or each of a list of texts, given what stands before it.

    Text and context are joined and then turned into ids, with the start mark of the tokenizer in
    front; scored are the ids behind those of the context alone. Ids are taken as they are. Where
    nothing stands before the first id, that one is not scored.

    Args:
        lm: the model; tokenizers as for `interlace.stream`.
        text: text, bytes or ids, or a list of such.
        context: what stands before it and is not scored; for a list of texts one for each.
        prefill_chunk: tokens per row and call of the model; what fits by default.
        batch_size: rows at a time; up to 32, fewer where memory is short.
        progress: called with (tokens read, tokens of all rows) after each call.

    Raises:
        InputError: an empty text, an id out of range, or a text longer than the model's context.
        MemoryLimitError: cache, state and logits do not fit in what the machine can give.
        NonFiniteError: logits that are no numbers.
    """
    check_sizes(prefill_chunk=prefill_chunk, batch_size=batch_size)
    many = is_many(text)
    texts = cast(Sequence[Prompt], text if many else [text])
    contexts = cast(
        Sequence[Prompt | None],
        [None] * len(texts) if context is None else context if many else [context],
    )
    if len(contexts) != len(texts):
        raise InputError(
            f"context must be one for each text, got {len(contexts)} for {len(texts)}."
        )
    tokenizer = tokenizer_of(lm)
    rows = [_rows_of(lm, tokenizer, *pair) for pair in zip(texts, contexts, strict=True)]
    scores = _Scoring(lm, tokenizer, rows, prefill_chunk, batch_size).run(progress)
    return scores if many else scores[0]


def _rows_of(
    lm: HybridLM, tokenizer: Tokenizer | None, text: Prompt, context: Prompt | None
) -> _Text:
    config = lm.config
    before: Prompt = () if context is None else context
    if _is_text(text) and (len(before) == 0 or _is_text(before)):
        ids_of(text, tokenizer, config, "the text")  # refuses an empty one, or no tokenizer
        assert tokenizer is not None
        prefix = tokenizer.prefix
        start = len(prefix) + (len(tokenizer.encode(_bytes(before))) if len(before) else 0)
        joined = tokenizer.encode((_bytes(before) if len(before) else b"") + _bytes(text))
        ids = checked_ids([*prefix, *joined], config.vocab_size)
    else:
        behind = ids_of(text, None if _is_text(text) else tokenizer, config, "the text")
        front = ids_of(before, tokenizer, config, "the context") if len(before) else []
        ids, start = [*front, *behind], len(front)
    if len(ids) > config.max_position_embeddings:
        raise too_long(config, 0, len(ids))
    return _Text(ids, max(1, start))


def _is_text(value: Prompt) -> bool:
    return isinstance(value, str | bytes)


def _bytes(value: Prompt) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(cast(bytes, value))


class _Scoring:
    """Rows that are scored in groups of similar length."""

    def __init__(
        self,
        lm: HybridLM,
        tokenizer: Tokenizer | None,
        rows: Sequence[_Text],
        chunk: int | None,
        batch: int | None,
    ) -> None:
        self._lm, self._tokenizer, self._rows = lm, tokenizer, rows
        weight = lm.lm_head.weight
        self._device = weight.device
        dtype = str(weight.dtype).removeprefix("torch.")
        limit = limit_of(weight.device)
        capacity = max(len(row.ids) for row in rows)
        every = {"every_logit": True}
        self._batch = min(
            len(rows), batch or choose_batch(lm.config, len(rows), capacity, dtype, limit, **every)
        )
        self._chunk = chunk or choose_chunk(lm.config, capacity, dtype, limit, self._batch, **every)
        require_context(
            lm.config, capacity, self._chunk, dtype, limit, batch=self._batch, every_logit=True
        )

    def run(self, progress: Callable[[int, int], None] | None) -> list[Score]:
        order = sorted(range(len(self._rows)), key=lambda number: len(self._rows[number].ids))
        scores: dict[int, Score] = {}
        done, total = 0, sum(len(row.ids) for row in self._rows)

        def read(tokens: int) -> None:
            nonlocal done
            done += tokens
            if progress:
                progress(done, total)

        for first in range(0, len(order), self._batch):
            group = order[first : first + self._batch]
            found = self._group([self._rows[number] for number in group], read)
            scores.update(zip(group, found, strict=True))
        return [scores[number] for number in range(len(self._rows))]

    @torch.inference_mode()
    def _group(self, rows: Sequence[_Text], read: Callable[[int], None]) -> list[Score]:
        lm, width = self._lm, max(len(row.ids) for row in rows)
        cache = lm.new_cache(len(rows), capacity=width)
        logprobs: list[list[float]] = [[] for _ in rows]
        greedy = [True] * len(rows)
        for place in range(0, width, self._chunk):
            # the last id of a row is scored and not read
            parts = [row.ids[:-1][place : place + self._chunk] for row in rows]
            sizes = [len(part) for part in parts]
            longest = max(sizes)
            if longest:
                padded = [[*part, *[0] * (longest - len(part))] for part in parts]
                tokens = torch.tensor(padded, dtype=torch.int64, device=self._device)
                lengths = None if min(sizes) == longest else sizes
                with whole_call():
                    logits = lm(tokens, cache=cache, lengths=lengths)
                for number, row in enumerate(rows):
                    first = max(place, row.start - 1)
                    targets = row.ids[first + 1 : place + sizes[number] + 1]
                    if not targets:
                        continue
                    part = logits[number, first - place : first - place + len(targets)]
                    require_finite(part)
                    wanted = torch.tensor(targets, device=self._device)[:, None]
                    logprobs[number] += (
                        part.double().log_softmax(-1).gather(1, wanted)[:, 0].tolist()
                    )
                    greedy[number] &= bool((part.argmax(-1) == wanted[:, 0]).all())
            read(sum(len(row.ids[place : place + self._chunk]) for row in rows))
        return [self._score(*found) for found in zip(rows, logprobs, greedy, strict=True)]

    def _score(self, row: _Text, logprobs: list[float], greedy: bool) -> Score:
        ids = row.ids[row.start :]
        spelled = b"" if self._tokenizer is None else self._tokenizer.decode(ids)
        return Score(
            token_ids=tuple(ids),
            logprobs=tuple(logprobs),
            greedy=greedy,
            num_bytes=len(spelled),
        )

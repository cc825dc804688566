"""What a model has read, kept for the next prompt that begins the same way.

    read before   the system prompt, a question, its answer
    next prompt   the system prompt, a question, its answer, another question    all is reused
    next prompt   the system prompt, another question            reused up to the nearest snapshot

The ids that were read are kept beside the cache, so that a prefix is found by comparing numbers,
and never by what somebody says it is. How far back the cache can go is up to its snapshots
(`interlace.caches.snapshots`): this class takes one where the reading of a prompt ends and one
whenever another `interval` tokens have been read.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from interlace.caches import HybridCache
from interlace.caches.hybrid import DEFAULT_SNAPSHOTS
from interlace.errors import CacheError
from interlace.models import HybridLM
from interlace.models.identity import read_stored

__all__ = ["PromptCache"]

_INTERVAL = 512
_TOKENS, _EVERY = "tokens", "interval"


class PromptCache:
    """A cache of one row and the ids that it has read; made by `new` or `load`.

    Whoever generates calls `reuse` with the ids of a prompt, reads the rest of them through
    `cache`, and reports each successful call of the model to `fed`.

    Args:
        cache: of one row, that has read `tokens`.
        tokens: ids, in order.
        interval: tokens between two snapshots, at least 1.
    """

    def __init__(
        self, cache: HybridCache, tokens: Sequence[int] = (), interval: int = _INTERVAL
    ) -> None:
        if cache.batch != 1:
            raise CacheError(
                f"a prompt cache must be of one row, got {cache.batch}; select one of them."
            )
        if type(interval) is not int or interval < 1:
            raise CacheError(f"interval must be at least 1 token, got {interval!r}.")
        if cache.length != len(tokens):
            raise CacheError(
                f"a prompt cache must know all ids that its cache has read, got {len(tokens)} ids "
                f"and a cache of {cache.length} tokens."
            )
        self.cache = cache
        self.tokens = [int(token) for token in tokens]
        self.interval = interval
        self._end_of_prompt = 0

    @classmethod
    def new(
        cls, lm: HybridLM, *, interval: int = _INTERVAL, max_snapshots: int = DEFAULT_SNAPSHOTS
    ) -> "PromptCache":
        """An empty one.

        Args:
            lm: the model that will read.
            interval: tokens between two snapshots.
            max_snapshots: how many are kept; each has the bytes of the delta states.
        """
        return cls(lm.new_cache(1, max_snapshots=max_snapshots), interval=interval)

    @classmethod
    def load(cls, path: str | Path, lm: HybridLM) -> "PromptCache":
        """What `save` wrote.

        Args:
            path: the file.
            lm: the model that filled the cache.

        Raises:
            CacheError: a file that `interlace.load_cache` refuses, or one without ids.
        """
        cache, stored = read_stored(path, lm)
        if stored.keys() != {_TOKENS, _EVERY}:
            raise CacheError(
                f"{path} must be a prompt cache, but says nothing of the ids that were read; read "
                "it with interlace.load_cache, or save one with --cache."
            )
        tokens, interval = stored[_TOKENS].tolist(), stored[_EVERY].tolist()
        if any(not 0 <= token < lm.config.vocab_size for token in tokens) or len(interval) != 1:
            raise CacheError(
                f"{path} must hold ids in 0..{lm.config.vocab_size - 1}, and does not; the file is "
                "damaged, so read the prompt again."
            )
        return cls(cache, tokens, interval[0])

    def reuse(self, ids: Sequence[int], capacity: int = 0) -> int:
        """Bring the cache to the longest prefix of `ids` that it can go back to. Mutates.

        The prefix is shorter than `ids`, because the last of them has to be read for its logits.

        Args:
            ids: of a prompt.
            capacity: tokens to reserve.

        Returns:
            How many tokens the cache holds now; `ids[that:]` has to be read.
        """
        length = self.cache.longest_trim(min(common_prefix(self.tokens, ids), len(ids) - 1))
        self._trim(length)
        self.cache.reserve(capacity)
        self._end_of_prompt = len(ids)
        return length

    def fed(self, ids: Sequence[int]) -> None:
        """Record the ids that a call of the model has read. Mutates; may take a snapshot.

        Args:
            ids: what was given to `lm(..., cache=self.cache)` in one call that succeeded.
        """
        before = len(self.tokens)
        self.tokens.extend(int(token) for token in ids)
        now = len(self.tokens)
        if now == self._end_of_prompt or now // self.interval > before // self.interval:
            self.cache.snapshot()

    def save(self, path: str | Path) -> None:
        """Write ids, cache and snapshots to the file `path`, whole or not at all.

        After a call of the model that failed or was interrupted half-way, the cache first goes back
        to its nearest snapshot.

        Raises:
            CacheError: a file that cannot be written.
        """
        if not self.cache.whole or self.cache.length != len(self.tokens):
            self._trim(self.cache.longest_trim(len(self.tokens)))
        self.cache.save(
            path,
            prompt={
                _TOKENS: torch.tensor(self.tokens, dtype=torch.int64),
                _EVERY: torch.tensor([self.interval]),
            },
        )

    def clone(self) -> "PromptCache":
        """A fork, as cheap as that of its cache."""
        return PromptCache(self.cache.clone(), self.tokens, self.interval)

    def _trim(self, length: int) -> None:
        self.cache.trim(length)
        del self.tokens[length:]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids at the start of both are the same."""
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))

"""Delta states of earlier lengths, kept so that a cache can go back to them.

    tokens      0 ------------------------------------------------> now
    latents     ...................................................  any prefix is there already
    snapshots   |                     |             |       |    |   each with the states of its own

A KDA state cannot be cut back: what a token did to it is not undone. So a cache that is to be
trimmed keeps copies of its states, a bounded number of them. When there is one too many, the one
goes whose absence costs least beside what has to be read again anyway: with `a` and `b` the lengths
kept before and behind it, the smallest (b - a) / (now - a). What stays is dense near the end and
thin far from it: with eight, taken at even steps up to 400 of them, a prefix that ends n tokens
before the end reads at most 3 n tokens and a step again. The newest always stays; the empty state
needs no snapshot.

A snapshot is never written to, so clones of a cache share theirs.
"""

from collections.abc import Callable, Sequence

from interlace.caches.delta import DeltaState
from interlace.errors import CacheError

__all__ = ["Snapshots"]

States = dict[int, DeltaState]
"""The delta state of each KDA layer, by the layer's 0-based position."""


class Snapshots:
    """States by the lengths of the rows at which they were taken.

    Args:
        most: how many are kept, at least 1.
    """

    def __init__(self, most: int) -> None:
        if type(most) is not int or most < 1:
            raise CacheError(f"a cache must keep at least one snapshot, got {most!r}.")
        self.most = most
        self._kept: dict[tuple[int, ...], States] = {}

    @property
    def lengths(self) -> list[tuple[int, ...]]:
        """Lengths of the rows of each snapshot, shortest first."""
        return sorted(self._kept, key=lambda lengths: (max(lengths), lengths))

    @property
    def items(self) -> list[tuple[tuple[int, ...], States]]:
        """Lengths and states of each snapshot, shortest first; not to be written to."""
        return [(lengths, self._kept[lengths]) for lengths in self.lengths]

    @property
    def states(self) -> list[DeltaState]:
        """Every state that is kept."""
        return [state for kept in self._kept.values() for state in kept.values()]

    def get(self, lengths: Sequence[int]) -> States | None:
        """The states at these lengths, not to be written to, or None."""
        return self._kept.get(tuple(lengths))

    def keep(self, lengths: Sequence[int], states: States) -> None:
        """Add one; drops another when there are too many. Mutates."""
        self._kept[tuple(lengths)] = states
        while len(self._kept) > self.most:
            del self._kept[_least_missed(self.lengths)]

    def forget_behind(self, lengths: Sequence[int]) -> None:
        """Drop those that have seen tokens which the cache has not, any longer. Mutates."""
        for kept in self.lengths:
            if any(mine > now for mine, now in zip(kept, lengths, strict=True)):
                del self._kept[kept]

    def change(
        self, rows: Callable[[tuple[int, ...]], tuple[int, ...]], states: Callable[[States], States]
    ) -> "Snapshots":
        """A new collection with each snapshot's lengths and states put through these functions."""
        other = Snapshots(self.most)
        for lengths in self.lengths:
            other._kept[rows(lengths)] = states(self._kept[lengths])
        return other

    def clone(self) -> "Snapshots":
        """A collection of its own that shares the states."""
        other = Snapshots(self.most)
        other._kept = dict(self._kept)
        return other


def _least_missed(kept: list[tuple[int, ...]]) -> tuple[int, ...]:
    """Of at least two snapshots, shortest first: the one to drop."""
    ends = [0, *(max(lengths) for lengths in kept)]
    now = ends[-1]

    def cost(place: int) -> float:
        before, behind = ends[place - 1], ends[place + 1]
        return (behind - before) / max(1, now - before)

    # of equals the shortest, which is the one that min finds first
    return kept[min(range(1, len(kept)), key=cost) - 1]

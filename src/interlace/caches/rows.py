"""How many tokens each row of a cache holds.

As long as all rows agree this is one Python integer, and nothing has to wait for a device to
answer. Once rows differ it is an int64 tensor beside an upper bound that is still an integer,
because what must be allocated may not depend on data.
"""

from collections.abc import Sequence

import torch

from interlace.errors import CacheError
from interlace.shapes import Int, Tensor

__all__ = ["Length", "RowLengths", "checked_rows"]

Length = int | tuple[int, ...]
"""Tokens of a batch: one number where all rows agree, else one number per row."""


class RowLengths:
    """Tokens per row.

    Args:
        batch: rows.
        device: of the tensor form.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self.batch = batch
        self.device = device
        self.bound = 0
        """No row is longer; exact while all rows agree."""
        self._ragged: Tensor | None = None

    @property
    def uniform(self) -> bool:
        """All rows are known to be `bound` tokens long."""
        return self._ragged is None

    @property
    def tensor(self) -> Int[Tensor, "B"]:
        """Lengths as int64, a tensor of the caller's own."""
        if self._ragged is None:
            return torch.full((self.batch,), self.bound, dtype=torch.int64, device=self.device)
        return self._ragged.clone()

    @property
    def values(self) -> list[int]:
        """Lengths as Python integers; waits for the device where rows differ."""
        return [self.bound] * self.batch if self._ragged is None else self._ragged.tolist()

    @property
    def length(self) -> Length:
        """The one length of all rows, or that of each."""
        values = self.values
        return values[0] if len(set(values)) == 1 else tuple(values)

    def advance(self, tokens: int, lengths: Int[Tensor, "B"] | None = None) -> None:
        """Add `tokens` to every row, or `lengths[b]` of them to row b.

        Raises:
            CacheError: lengths that are not one per row.
        """
        if lengths is not None and tuple(lengths.shape) != (self.batch,):
            raise CacheError(
                f"lengths must be [{self.batch}], one per row of the cache, got "
                f"{list(lengths.shape)}; pass one number per row."
            )
        if lengths is not None:
            self._ragged = self.tensor + lengths.to(device=self.device, dtype=torch.int64)
        elif self._ragged is not None:
            self._ragged = self._ragged + tokens
        self.bound += tokens

    def assign(self, values: Sequence[int]) -> None:
        """Take these lengths, one per row, instead of what was counted."""
        self.bound = max(values)
        self._ragged = None
        if min(values) != self.bound:
            self._ragged = torch.tensor(values, dtype=torch.int64, device=self.device)

    def clone(self) -> "RowLengths":
        """An independent copy."""
        other = RowLengths(self.batch, self.device)
        other.bound = self.bound
        other._ragged = None if self._ragged is None else self._ragged.clone()
        return other


def checked_rows(rows: Sequence[int] | Tensor, batch: int) -> list[int]:
    """Row numbers as a list of integers in 0..batch - 1.

    Raises:
        CacheError: none, a number out of range, or what is no list of integers.
    """
    values = rows.tolist() if isinstance(rows, Tensor) else list(rows)
    wrong = [n for n in values if type(n) is not int or not 0 <= n < batch]
    if not values or wrong:
        raise CacheError(
            f"rows must be at least one number in 0..{batch - 1}, got "
            f"{wrong[0] if wrong else 'none'!r}; name rows of this cache."
        )
    return values

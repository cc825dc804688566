"""The latents of one Gated MLA layer, `[B, M, R + P]`: the normed latent, then the shared key.

    buffer  [B, capacity, R + P]     written ------------|  unwritten, never read
    view()  [B, M, R + P]            ....................|

Rows of different length share the axis M: behind a shorter row stand zeros, which attention masks.
The cache carries values, no gradients. Out of scope: which of the tokens a query may see.

A clone shares the buffer. Both may read all of it, and because latents are only ever appended, the
first of them to go on may write behind what is written; whoever would write over what another one
can see copies its own part first:

    buffer     p r o m p t a a a        original: p r o m p t, then a a a, in place
               p r o m p t              clone:    p r o m p t
    on append  p r o m p t b            the clone's own buffer, from its first token on
"""

from collections.abc import Sequence
from weakref import WeakSet

import torch

from interlace.caches.rows import RowLengths
from interlace.config.sizes import grow_capacity
from interlace.errors import CacheError
from interlace.shapes import Float, Int, Tensor

__all__ = ["LatentCache"]


class LatentCache:
    """Latents that grow with the context.

    Args:
        batch: rows.
        latent_dim: R + P.
        dtype: of the stored latents; what is appended is cast to it.
        device: where they live.
        capacity: tokens to reserve per row; with 0, or when more come, it grows by the rule of
            `interlace.config.sizes.grow_capacity`.
    """

    def __init__(
        self,
        batch: int,
        latent_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
        capacity: int = 0,
    ) -> None:
        if batch < 1 or latent_dim < 1 or capacity < 0:
            raise CacheError(
                "a latent cache needs batch >= 1, latent_dim >= 1 and capacity >= 0, got "
                f"{batch}, {latent_dim} and {capacity}; give sizes of the model and the batch."
            )
        self.batch = batch
        self.latent_dim = latent_dim
        self._memory = _Memory.allocate(batch, capacity, latent_dim, dtype, torch.device(device))
        self._memory.holders.add(self)
        self._rows = RowLengths(batch, self._buffer.device)

    @property
    def dtype(self) -> torch.dtype:
        """Of the stored latents."""
        return self._buffer.dtype

    @property
    def device(self) -> torch.device:
        """Where the latents live."""
        return self._buffer.device

    @property
    def capacity(self) -> int:
        """Tokens allocated per row."""
        return self._buffer.shape[1]

    @property
    def lengths(self) -> Int[Tensor, "B"]:
        """Real tokens of each row, int64."""
        return self._rows.tensor

    @property
    def nbytes(self) -> int:
        """Bytes allocated: capacity, not length; those of a shared buffer too."""
        return self._buffer.untyped_storage().nbytes()

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is allocated, by name."""
        return {"latent": self._buffer}

    def append(
        self, latent: Float[Tensor, "B T latent"], lengths: Int[Tensor, "B"] | None = None
    ) -> Int[Tensor, "B"] | None:
        """Write the latents of T new tokens behind those that are there. Mutates the cache.

        Args:
            latent: of the new tokens.
            lengths: real tokens of each right-padded row; the rest is not kept.

        Returns:
            Where the T new tokens of each row end in `view()`, padding counted, so that query t of
            row b stands at `ends[b] - T + t`. None when that is the end of the view in every row.

        Raises:
            CacheError: another batch, width or rank than the cache's.
        """
        if latent.ndim != 3 or latent.shape[0] != self.batch or latent.shape[2] != self.latent_dim:
            raise CacheError(
                f"latents must be [{self.batch}, T, {self.latent_dim}] for this cache, got "
                f"{list(latent.shape)}; use a cache made for this model and batch."
            )
        tokens, start = latent.shape[1], self._rows.bound
        end = start + tokens
        # rows of different length are written inside the view, where a clone reads
        self._prepare(end, first=start if self._rows.uniform else 0)
        latent = latent.detach()
        if self._rows.uniform and lengths is None:
            self._buffer[:, start:end] = latent
            self._rows.advance(tokens)
            return None
        starts = self._rows.tensor
        self._rows.advance(tokens, lengths)
        steps = torch.arange(tokens, device=self.device)
        if lengths is not None:
            padded = steps >= lengths.to(self.device)[:, None]
            latent = latent.masked_fill(padded[..., None], 0.0)
        # every slot of the view is written, so that a weight of zero meets no garbage
        self._buffer[:, start:end] = 0
        rows = torch.arange(self.batch, device=self.device)[:, None]
        self._buffer[rows, starts[:, None] + steps] = latent.to(self.dtype)
        return starts + tokens

    def view(self) -> Float[Tensor, "B M latent"]:
        """The written part, without a copy, to be read only: later appends show in it."""
        return self._buffer[:, : self._rows.bound]

    def reserve(self, capacity: int) -> None:
        """Have room for `capacity` tokens per row, no more. Mutates the cache."""
        if capacity > self.capacity:
            self._move(capacity)

    def trim(self, lengths: Sequence[int]) -> None:
        """Forget the tokens of each row behind `lengths[b]`. Mutates the cache.

        Args:
            lengths: one per row, none longer than the row is.
        """
        if min(lengths) != max(lengths):
            end = max(lengths)
            self._prepare(end, first=0)
            for row, length in enumerate(lengths):
                self._buffer[row, length:end] = 0
        self._rows.assign(lengths)

    def clone(self) -> "LatentCache":
        """A copy of the same capacity, which shares its memory until one of the two writes."""
        other = object.__new__(LatentCache)
        other.batch, other.latent_dim = self.batch, self.latent_dim
        other._memory = self._memory
        other._memory.holders.add(other)
        other._rows = self._rows.clone()
        return other

    @staticmethod
    def of_rows(sources: Sequence[tuple["LatentCache", int]], capacity: int) -> "LatentCache":
        """A new cache whose row i is a copy of row `sources[i][1]` of the cache `sources[i][0]`.

        Args:
            sources: caches of one width, dtype and device, and a row of each.
            capacity: tokens to reserve per row; at least the longest row is.
        """
        first = sources[0][0]
        lengths = {id(cache): cache._rows.values for cache, _ in sources}
        values = [lengths[id(cache)][row] for cache, row in sources]
        room = max(capacity, *values)
        out = LatentCache(len(sources), first.latent_dim, first.dtype, first.device, room)
        end = max(values)
        for place, ((cache, row), length) in enumerate(zip(sources, values, strict=True)):
            out._buffer[place, :length] = cache._buffer[row, :length]
            out._buffer[place, length:end] = 0
        out._memory.written = end
        out._rows.assign(values)
        return out

    @property
    def _buffer(self) -> Float[Tensor, "B capacity latent"]:
        return self._memory.buffer

    def _prepare(self, end: int, first: int) -> None:
        """Make the slots from `first` up to `end` free to write.

        They are where nobody else holds the buffer, and behind all that was written to it.
        """
        if end > self.capacity:
            self._move(grow_capacity(self.capacity, end))
        elif len(self._memory.holders) > 1 and first < self._memory.written:
            self._move(self.capacity)
        memory = self._memory
        memory.written = end if len(memory.holders) == 1 else max(end, memory.written)

    def _move(self, capacity: int) -> None:
        """Copy the written part into a buffer of its own."""
        own = _Memory.allocate(self.batch, capacity, self.latent_dim, self.dtype, self.device)
        own.written = self._rows.bound
        own.buffer[:, : own.written] = self.view()
        self._memory.holders.discard(self)
        own.holders.add(self)
        self._memory = own


class _Memory:
    """A buffer, the caches that read it, and how many of its slots any of them has written."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        self.written = 0
        # weak, so that a clone that was dropped keeps nobody from writing
        self.holders: WeakSet[LatentCache] = WeakSet()

    @staticmethod
    def allocate(
        batch: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> "_Memory":
        # a buffer made in inference mode could not be written outside of it
        with torch.inference_mode(False):
            return _Memory(torch.empty(batch, capacity, width, dtype=dtype, device=device))

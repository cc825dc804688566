"""The latents of one Gated MLA layer, `[B, M, R + P]`: the normed latent, then the shared key.

    buffer  [B, capacity, R + P]     written ------------|  unwritten, never read
    view()  [B, M, R + P]            ....................|

Rows of different length share the axis M: behind a shorter row stand zeros, which attention masks.
The cache carries values, no gradients. Out of scope: which of the tokens a query may see.
"""

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
        self._buffer = _allocate(batch, capacity, latent_dim, dtype, torch.device(device))
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
        """Bytes allocated: capacity, not length."""
        return self._buffer.untyped_storage().nbytes()

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
        self._reserve(end)
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
        """The written part, without a copy: later appends show in it."""
        return self._buffer[:, : self._rows.bound]

    def clone(self) -> "LatentCache":
        """An independent copy of the same capacity."""
        other = LatentCache(self.batch, self.latent_dim, self.dtype, self.device, self.capacity)
        other._rows = self._rows.clone()
        other.view().copy_(self.view())
        return other

    def _reserve(self, needed: int) -> None:
        if needed <= self.capacity:
            return
        capacity = grow_capacity(self.capacity, needed)
        grown = _allocate(self.batch, capacity, self.latent_dim, self.dtype, self.device)
        grown[:, : self._rows.bound] = self.view()
        self._buffer = grown


def _allocate(
    batch: int, capacity: int, width: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    # a buffer made in inference mode could not be written outside of it
    with torch.inference_mode(False):
        return torch.empty(batch, capacity, width, dtype=dtype, device=device)

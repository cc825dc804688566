"""The cache of a whole model: latents for each global layer, a delta state for each KDA layer.

Bytes are a + b * capacity; `interlace.config.sizes` holds the formula, and a test holds both
together.
"""

import torch

from interlace.caches.delta import DeltaState
from interlace.caches.latent import LatentCache
from interlace.caches.rows import RowLengths
from interlace.config import HybridConfig
from interlace.errors import CacheError
from interlace.shapes import Int, Tensor

__all__ = ["HybridCache"]


class HybridCache:
    """Everything that a model remembers of a batch of sequences.

    Args:
        config: the model.
        batch: rows.
        dtype: of latents and convolution windows; the delta state is float32.
        device: where it lives.
        capacity: tokens to reserve in every global layer; 0 grows as needed.
    """

    def __init__(
        self,
        config: HybridConfig,
        batch: int,
        dtype: torch.dtype,
        device: torch.device | str,
        capacity: int = 0,
    ) -> None:
        if batch < 1 or capacity < 0:
            raise CacheError(
                f"a cache needs batch >= 1 and capacity >= 0, got {batch} and {capacity}; give the "
                "rows of the call and the tokens to reserve."
            )
        self.batch = batch
        self.layers: list[LatentCache | DeltaState] = [
            LatentCache(batch, config.latent_dim, dtype, device, capacity)
            if config.is_global(layer_idx)
            else DeltaState(
                batch,
                config.kda_num_heads,
                config.kda_head_dim,
                config.kda_head_dim,
                config.short_conv_kernel_size,
                device,
                dtype,
            )
            for layer_idx in range(config.num_hidden_layers)
        ]
        self._rows = RowLengths(batch, torch.device(device))

    @property
    def lengths(self) -> Int[Tensor, "B"]:
        """Tokens that each row has seen, int64."""
        return self._rows.tensor

    @property
    def capacity(self) -> int:
        """Tokens allocated per row in each global layer; 0 in a model without one."""
        return max((x.capacity for x in self.layers if isinstance(x, LatentCache)), default=0)

    @property
    def latent_bytes(self) -> int:
        """Bytes allocated for latents."""
        return sum(x.nbytes for x in self.layers if isinstance(x, LatentCache))

    @property
    def state_bytes(self) -> int:
        """Bytes allocated for delta states and convolution windows."""
        return sum(x.nbytes for x in self.layers if isinstance(x, DeltaState))

    @property
    def nbytes(self) -> int:
        """Bytes allocated in all."""
        return self.latent_bytes + self.state_bytes

    def advance(self, tokens: int, lengths: Int[Tensor, "B"] | None = None) -> None:
        """Count the tokens of a call that all layers have taken in. Mutates the cache.

        Args:
            tokens: T of the call.
            lengths: real tokens of each right-padded row.
        """
        self._rows.advance(tokens, lengths)

    def clone(self) -> "HybridCache":
        """An independent copy of the same capacity."""
        other = object.__new__(HybridCache)
        other.batch = self.batch
        other.layers = [layer.clone() for layer in self.layers]
        other._rows = self._rows.clone()
        return other

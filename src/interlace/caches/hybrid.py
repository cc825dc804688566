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

_SIZES = (
    "kda_layers",
    "full_attn_layers",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kda_num_heads",
    "kda_head_dim",
    "short_conv_kernel_size",
)
"""Fields of a config that say what a cache holds."""


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
        if not (isinstance(batch, int) and isinstance(capacity, int)) or batch < 1 or capacity < 0:
            raise CacheError(
                "a cache needs integers batch >= 1 and capacity >= 0, got "
                f"{batch!r} and {capacity!r}; "
                "give the rows of the call and the tokens to reserve."
            )
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise CacheError(f"a cache needs a floating torch.dtype, got {dtype!r}.")
        self.batch = batch
        self._sizes = {name: getattr(config, name) for name in _SIZES}
        self._unfinished = False
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

    def begin(self, config: HybridConfig, batch: int, device: torch.device) -> None:
        """Open a call of the model, which `advance` closes. Mutates the cache.

        Args:
            config: of the model.
            batch: rows of the call.
            device: of its tokens.

        Raises:
            CacheError: a cache of another model, batch or device, or one whose last call failed on
                the way, so that some of its layers have seen tokens that the others have not.
        """
        if self._unfinished:
            raise CacheError(
                "the cache must be whole, but a call that used it failed half-way; make a new one "
                "with lm.new_cache(batch), or go on from a clone() taken before."
            )
        for name, own in self._sizes.items():
            if own != getattr(config, name):
                raise CacheError(
                    f"the cache must be of this model, with {name} = {getattr(config, name)}, got "
                    f"{own}; make one with lm.new_cache(batch)."
                )
        if self.batch != batch or self._rows.device.type != device.type:
            raise CacheError(
                f"the cache must be for {batch} rows on {device}, got {self.batch} rows on "
                f"{self._rows.device}; make one with lm.new_cache(batch)."
            )
        self._unfinished = True

    def advance(self, tokens: int, lengths: Int[Tensor, "B"] | None = None) -> None:
        """Count the tokens of a call that all layers have taken in. Mutates the cache.

        Args:
            tokens: T of the call.
            lengths: real tokens of each right-padded row.
        """
        self._rows.advance(tokens, lengths)
        self._unfinished = False

    def clone(self) -> "HybridCache":
        """An independent copy of the same capacity."""
        other = object.__new__(HybridCache)
        other.batch = self.batch
        other._sizes, other._unfinished = self._sizes, self._unfinished
        other.layers = [layer.clone() for layer in self.layers]
        other._rows = self._rows.clone()
        return other

"""Our model with a cache at any depth, filled with random latents instead of tokens.

    latents   a block [1, up to 4096, R + P] at a time: a latent of unit mean square, a shared key
    states    those after a few real tokens: their size does not depend on the depth

The latents of a layer depend on its index alone, so that another system can be given the same.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from interlace.caches import DeltaState, HybridCache, LatentCache
from interlace.config import HybridConfig
from interlace.models import HybridLM

__all__ = ["BLOCK", "WARM_TOKENS", "Filled", "random_latents"]

BLOCK = 4096
"""Latents that are drawn at a time."""

WARM_TOKENS = (7, 3, 11, 5, 2)
"""What every system has read before its latents are put in."""


def random_latents(
    config: HybridConfig, layer_idx: int, tokens: int, dtype: torch.dtype
) -> Iterator[Tensor]:
    """Blocks `[1, up to 4096, R + P]`: a latent of unit mean square, then a shared key.

    Args:
        config: the model.
        layer_idx: 0-based; it is the seed.
        tokens: how many in all.
        dtype: of the result.
    """
    generator = torch.Generator().manual_seed(layer_idx)
    for start in range(0, tokens, BLOCK):
        block = torch.randn(1, min(BLOCK, tokens - start), config.latent_dim, generator=generator)
        latent = block[..., : config.kv_lora_rank]
        latent *= latent.square().mean(-1, keepdim=True).rsqrt()
        yield block.to(dtype)


class Filled:
    """A model and a cache that holds `tokens` random latents.

    Args:
        lm: the model.
        tokens: depth; 0 leaves the cache as it is after the warm tokens, five.
        reserve: tokens that will be fed.
    """

    def __init__(self, lm: HybridLM, tokens: int, reserve: int) -> None:
        self.lm = lm
        config, dtype = lm.config, lm.lm_head.weight.dtype
        vocab = config.vocab_size
        warm = torch.tensor([[token % vocab for token in WARM_TOKENS]])
        # room for the case that nothing is put in
        after_warm = lm.new_cache(1, capacity=0 if tokens else len(WARM_TOKENS) + reserve)
        lm(warm, cache=after_warm, last_only=True)
        self.cache: HybridCache = after_warm
        if not tokens:
            return
        self.cache = lm.new_cache(1, capacity=tokens + reserve)
        for layer_idx, layer in enumerate(self.cache.layers):
            if isinstance(layer, LatentCache):
                for block in random_latents(config, layer_idx, tokens, dtype):
                    layer.append(block)
            else:
                state = after_warm.layers[layer_idx]
                assert isinstance(state, DeltaState)
                self.cache.layers[layer_idx] = state
        self.cache.advance(tokens)

    def step(self, token: int = 5) -> Tensor:
        """Logits `[vocab]` after one more token."""
        return self.lm(torch.tensor([[token]]), cache=self.cache, last_only=True)[0, -1]

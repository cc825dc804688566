"""What survives between calls: latents of global layers, states of KDA layers, both."""

from interlace.caches.delta import DeltaState as DeltaState
from interlace.caches.hybrid import HybridCache as HybridCache
from interlace.caches.latent import LatentCache as LatentCache

__all__ = ["DeltaState", "HybridCache", "LatentCache"]

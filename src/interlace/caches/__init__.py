"""What survives between calls: the latents of global layers, the states of KDA layers, both together."""

from interlace.caches.delta import DeltaState as DeltaState
from interlace.caches.hybrid import HybridCache as HybridCache
from interlace.caches.latent import LatentCache as LatentCache

__all__ = ["DeltaState", "HybridCache", "LatentCache"]

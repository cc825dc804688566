"""What survives between calls: latents of global layers, states of KDA layers, both."""

from interlace.caches.delta import DeltaState as DeltaState
from interlace.caches.file import ModelIdentity as ModelIdentity
from interlace.caches.hybrid import HybridCache as HybridCache
from interlace.caches.hybrid import allocated_bytes as allocated_bytes
from interlace.caches.latent import LatentCache as LatentCache

__all__ = ["DeltaState", "HybridCache", "LatentCache", "ModelIdentity", "allocated_bytes"]

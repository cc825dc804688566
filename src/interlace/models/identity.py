"""Which model a cache belongs to, and reading one back for it.

Latents and states mean something only to the weights that made them, and two checkpoints of one
config have the same shapes. So a saved cache names its model by a hash that costs little: of the
config, and of every tensor's name, dtype, shape and first 4 KiB. The config's `dtype` is left out:
it says how a checkpoint is stored, the tensors say what is computed with.
"""

import json
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from interlace.caches import HybridCache, ModelIdentity
from interlace.caches.file import read_cache
from interlace.shapes import Tensor

if TYPE_CHECKING:
    from interlace.models.hybrid import HybridLM

__all__ = ["identity", "load_cache", "read_stored"]

_HASHED_BYTES = 4096


def identity(lm: "HybridLM") -> ModelIdentity:
    """The identity of a model, from its weights as they are now; the device does not matter."""
    fields = {name: value for name, value in asdict(lm.config).items() if name != "dtype"}
    config = sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    weights = sha256(config.encode())
    for name, value in sorted(lm.state_dict().items()):
        weights.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        weights.update(_first_bytes(value))
    dtype = str(lm.lm_head.weight.dtype).removeprefix("torch.")
    return ModelIdentity(config, dtype, weights.hexdigest())


def load_cache(path: str | Path, lm: "HybridLM", *, capacity: int = 0) -> HybridCache:
    """The cache that `cache.save(path)` wrote, on the device of `lm`, snapshots included.

    Continuing from it gives what continuing from the cache that was saved gives: every number in
    it is the same to the bit.

    Args:
        path: the file.
        lm: the model that filled the cache.
        capacity: tokens to reserve per row; the longest row at least.

    Raises:
        CacheError: no such file, a damaged one, one of a newer format, or a cache of another model
            or of the same model in another dtype.
    """
    return read_stored(path, lm, capacity)[0]


def read_stored(
    path: str | Path, lm: "HybridLM", capacity: int = 0
) -> tuple[HybridCache, dict[str, Tensor]]:
    """As `load_cache`, with the int64 tensors that were stored beside the cache."""
    return read_cache(path, lm.new_cache, identity(lm), capacity)


def _first_bytes(value: Tensor) -> bytes:
    few = value.detach().reshape(-1)[: _HASHED_BYTES // value.element_size()]
    data: bytes = few.cpu().contiguous().view(torch.uint8).numpy().tobytes()
    return data

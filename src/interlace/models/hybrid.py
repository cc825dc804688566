"""The hybrid language model: embedding, blocks, final norm, head.

The module tree carries the published names, so `state_dict()` is the published layout but for two
shapes on disk (`A_log`; see `interlace.checkpoints.names`). Values are checked here, at the door:
token ids and the cache that came with them; the layers below trust what they get.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from interlace.caches import HybridCache
from interlace.config import HybridConfig
from interlace.errors import CacheError, ConfigError, InputError, ShapeError
from interlace.layers import AttentionResidualBlock, Block, RMSNorm
from interlace.layers.precision import at_least_float32
        for layer, layer_cache in zip(self.model.layers, caches, strict=True):
            x = layer(x, cache=layer_cache, lengths=rows.lengths, cu_seqlens=offsets)

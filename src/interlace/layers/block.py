"""One layer of the stack: a mixer over time, then a feed-forward, each behind a norm.

The plain residual form is `Block.forward`: x + mixer(norm(x)), then x + feed_forward(norm(x)).
What else can join sublayers is in `interlace.layers.residual`.
"""

from typing import Any

from torch import nn

from interlace.config import HybridConfig
from interlace.layers.kda import KimiDeltaAttention
from interlace.layers.mla import GatedMLA
from interlace.layers.mlp import MLP, activation
from interlace.layers.moe import MoE
from interlace.layers.norm import RMSNorm
from interlace.shapes import Float, Tensor

__all__ = ["Block"]


class Block(nn.Module):
    """One layer of the stack, joined by plain residuals.

    Args:
        config: which layers are global and which have experts.
        layer_idx: 0-based position in the stack.
    """

    def __init__(self, config: HybridConfig, layer_idx: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn: nn.Module
        if config.is_global(layer_idx):
            self.self_attn = GatedMLA(config, layer_idx)
        else:
            self.self_attn = KimiDeltaAttention(config, layer_idx)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.is_moe = config.is_moe(layer_idx)
        if self.is_moe:
            self.block_sparse_moe = MoE(config)
        else:
            self.mlp = MLP(config.hidden_size, config.intermediate_size, activation(config))

    def forward(self, x: Float[Tensor, "B T D"], **context: Any) -> Float[Tensor, "B T D"]:
        """Apply mixer and feed-forward; `context` (cache, lengths, cu_seqlens) is for the mixer."""
        x = x + self.mix(x, **context)
        return x + self.feed(x)

    def mix(self, x: Float[Tensor, "B T D"], **context: Any) -> Float[Tensor, "B T D"]:
        """The mixer behind its norm, without a residual."""
        y: Tensor = self.self_attn(self.input_layernorm(x), **context)
        return y

    def feed(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The feed-forward behind its norm, without a residual."""
        feed_forward = self.block_sparse_moe if self.is_moe else self.mlp
        y: Tensor = feed_forward(self.post_attention_layernorm(x))
        return y

"""The pre-norm residual block: x + mixer(norm(x)), then x + feed_forward(norm(x))."""

from typing import Any

from torch import nn

from interlace.config import HybridConfig
from interlace.layers.kda import KimiDeltaAttention
from interlace.layers.mla import GatedMLA
from interlace.layers.mlp import MLP
from interlace.layers.moe import MoE
from interlace.layers.norm import RMSNorm
from interlace.shapes import Float, Tensor

__all__ = ["Block"]


class Block(nn.Module):
    """One layer of the stack.

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
            self.mlp = MLP(config.hidden_size, config.intermediate_size)

    def forward(self, x: Float[Tensor, "B T D"], **context: Any) -> Float[Tensor, "B T D"]:
        """Apply mixer and feed-forward; `context` (cache, lengths, cu_seqlens) is for the mixer."""
        x = x + self.self_attn(self.input_layernorm(x), **context)
        feed_forward = self.block_sparse_moe if self.is_moe else self.mlp
        out: Tensor = x + feed_forward(self.post_attention_layernorm(x))
        return out

"""Modules that hold parameters, named as in the published checkpoints."""

from interlace.layers.block import Block as Block
from interlace.layers.kda import KimiDeltaAttention as KimiDeltaAttention
from interlace.layers.mla import GatedMLA as GatedMLA
from interlace.layers.mlp import MLP as MLP
from interlace.layers.moe import MoE as MoE
from interlace.layers.norm import RMSNorm as RMSNorm
from interlace.layers.residual import AttentionResidualBlock as AttentionResidualBlock

__all__ = [
    "MLP",
    "AttentionResidualBlock",
    "Block",
    "GatedMLA",
    "KimiDeltaAttention",
    "MoE",
    "RMSNorm",
]

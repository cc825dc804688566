"""Routed and shared experts of Kimi Linear (spec sections 7.2 and 7.3)."""

import torch
from torch import nn

from interlace.config import HybridConfig
from interlace.layers.mlp import MLP
from interlace.layers.precision import KeepFloat32
from interlace.ops.moe import moe_experts, route
from interlace.shapes import Float, Tensor

__all__ = ["MoE"]


class Router(KeepFloat32, nn.Module):
    """The weight `[E, D]` of the router and the bias `[E]` that only decides who is chosen."""

    kept_float32 = ("e_score_correction_bias",)
    e_score_correction_bias: Tensor

    def __init__(self, hidden_size: int, num_experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        if not self.weight.is_meta:
            # as nn.Linear starts
            nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(num_experts))


class Expert(nn.Module):
    """One routed expert: w1 is the gate, w3 goes up, w2 comes down."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.w2 = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.w3 = nn.Linear(hidden_size, intermediate_size, bias=False)


class MoE(nn.Module):
    """Sum of the chosen experts, weighted, plus the shared ones.

    Args:
        config: sizes and routing; see `interlace.ops.moe.route`.
        biased_weights: weight the experts by the biased scores, as Kimi Linear's own remote code
            does (spec section 7.2); everybody else, and the default here, uses the unbiased ones.
    """

    def __init__(self, config: HybridConfig, biased_weights: bool = False) -> None:
        super().__init__()
        assert config.num_experts
        assert config.num_experts_per_token
        assert config.moe_intermediate_size
        self.config = config
        self.biased_weights = biased_weights
        width = config.moe_intermediate_size
        self.gate = Router(config.hidden_size, config.num_experts)
        self.experts = nn.ModuleList(
            Expert(config.hidden_size, width) for _ in range(config.num_experts)
        )
        self.shared_experts = (
            MLP(config.hidden_size, width * config.num_shared_experts)
            if config.num_shared_experts
            else None
        )

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Route every token of `x` by itself."""
        config, rows = self.config, x.flatten(0, -2)  # [B*T, D]
        bias = self.gate.e_score_correction_bias
        assert config.num_experts_per_token is not None
        indices, weights = route(
            rows,
            self.gate.weight,
            bias,
            top_k=config.num_experts_per_token,
            num_groups=config.num_expert_group,
            topk_group=config.topk_group,
            renormalize=config.moe_renormalize,
            scaling=config.routed_scaling_factor,
            biased_weights=self.biased_weights,
        )
        w1, w2, w3 = (
            [getattr(expert, name).weight for expert in self.experts] for name in ("w1", "w2", "w3")
        )
        y: Tensor = moe_experts(rows, indices, weights, w1, w2, w3).view_as(x)
        return y if self.shared_experts is None else y + self.shared_experts(x)

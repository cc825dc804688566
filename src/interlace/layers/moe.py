"""Routed and shared experts: of Kimi Linear, and in a latent as in Kimi K3.

    x -> gate -> scores, chosen experts and their weights
    x -> (routed_expert_down_proj) -> z -> sum of weight * expert(z) -> (norm, up_proj) -> y
    x -> shared_experts                                                            -> + y

In brackets what K3 adds (Stable LatentMoE; report, equation 11): one projection into a narrower
latent before the tokens are dispatched, and a norm before the sum is projected up again. Router and
shared experts read x itself. Spec sections 7.2 and 7.3.
"""

from collections.abc import Callable

import torch
from torch import nn

from interlace.config import HybridConfig
from interlace.config.sizes import expert_width, packs_experts
from interlace.layers.expert_cache import ExpertCache
from interlace.layers.linear import Linear, gated
from interlace.layers.mlp import MLP, Glu, activation
from interlace.layers.norm import RMSNorm
from interlace.layers.packed import PackedLinear
from interlace.layers.precision import KeepFloat32
from interlace.layers.step import feed_step
from interlace.ops.moe import choose, dispatch, router_scores
from interlace.shapes import Float, Tensor

__all__ = ["Expert", "MoE", "Router"]


class Router(KeepFloat32, nn.Module):
    """The weight `[E, D]` of the router and the bias `[E]` that only decides who is chosen.

    `watch`, when set, is called with the scores `[T, E]` of every call; training balances the bias
    with it (`interlace.training.balance`). Nothing here changes the bias.
    """

    kept_float32 = ("e_score_correction_bias",)
    e_score_correction_bias: Tensor

    def __init__(self, hidden_size: int, num_experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, hidden_size))
        if not self.weight.is_meta:
            # as nn.Linear starts
            nn.init.kaiming_uniform_(self.weight, a=5**0.5)
        self.register_buffer("e_score_correction_bias", torch.zeros(num_experts))
        self.watch: Callable[[Tensor], None] | None = None

    def forward(self, x: Float[Tensor, "T D"]) -> Float[Tensor, "T E"]:
        """Scores in float32, without the bias."""
        scores = router_scores(x, self.weight)
        if self.watch is not None:
            self.watch(scores.detach())
        return scores


class ExpertLinear(Linear):
    """One matrix of an expert; without memory it draws nothing, which a quarter million would pay.

    On the meta device torch goes through the motions of drawing: 12 of 19 seconds for K3.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)

    def reset_parameters(self) -> None:
        """Start as `nn.Linear` does where there is memory."""
        if not self.weight.is_meta:
            super().reset_parameters()


class Expert(nn.Module):
    """One routed expert: w1 is the gate, w3 goes up, w2 comes down.

    Args:
        hidden_size: width of input and output.
        intermediate_size: width F between the products.
        glu: gated activation; see `interlace.layers.mlp.activation`.
        packed: keep the three matrices in MXFP4.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, glu: Glu, packed: bool = False
    ) -> None:
        super().__init__()
        linear = PackedLinear if packed else ExpertLinear
        self.w1 = linear(hidden_size, intermediate_size)
        self.w2 = linear(intermediate_size, hidden_size)
        self.w3 = linear(hidden_size, intermediate_size)
        self.glu = glu

    def forward(self, x: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """Apply the expert to the rows that chose it."""
        stepped = feed_step(self, x, (self.w1, self.w3, self.w2), self.glu)
        if stepped is not None:
            return stepped
        out: Tensor = self.w2(gated(x, self.w1, self.w3, self.glu))
        return out


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
        self.expert_cache: ExpertCache | None = None
        hidden, width = config.hidden_size, config.moe_intermediate_size
        inner, glu = expert_width(config), activation(config)
        self.gate = Router(hidden, config.num_experts)
        packed = packs_experts(config)
        self.experts = nn.ModuleList(
            Expert(inner, width, glu, packed) for _ in range(config.num_experts)
        )
        self.shared_experts = (
            MLP(hidden, width * config.num_shared_experts, glu)
            if config.num_shared_experts
            else None
        )
        self.is_latent = config.routed_expert_hidden_size is not None
        if self.is_latent:
            self.routed_expert_down_proj = Linear(hidden, inner)
            if config.latent_moe_use_norm:
                self.routed_expert_norm = RMSNorm(inner, config.rms_norm_eps)
            self.routed_expert_up_proj = Linear(inner, hidden)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Route every token of `x` by itself."""
        config, rows = self.config, x.flatten(0, -2)  # [B*T, D]
        assert config.num_experts_per_token is not None
        indices, weights = choose(
            self.gate(rows),
            self.gate.e_score_correction_bias,
            top_k=config.num_experts_per_token,
            num_groups=config.num_expert_group,
            topk_group=config.topk_group,
            renormalize=config.moe_renormalize,
            scaling=config.routed_scaling_factor,
            biased_weights=self.biased_weights,
        )
        if self.is_latent:
            # once, before dispatch: a token's experts all read the same latent
            rows = self.routed_expert_down_proj(rows)
        y = dispatch(rows, indices, weights, self._expert)
        if self.is_latent:
            if config.latent_moe_use_norm:
                y = self.routed_expert_norm(y)
            y = self.routed_expert_up_proj(y)
        y = y.view_as(x)
        return y if self.shared_experts is None else y + self.shared_experts(x)

    def _expert(self, number: int, rows: Tensor) -> Tensor:
        expert = self.experts[number]
        cache = self.expert_cache
        out: Tensor = expert(rows) if cache is None else cache(expert, rows)
        return out

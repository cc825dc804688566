"""A second forward of the whole model, token by token, from the reference operators.

It shares the config and the weights with `layers` and `models`, and not a line of code: what is
wrong there is right here. In float64 it is what everything else is measured against. In the dtype
of the model it is the plain way of docs/numerics.md, in the precision of each part that the page
states; its own error says how far an honest computation may be off.

    ids -> embedding -> [ norm -> KDA or MLA -> + -> norm -> MLP or experts -> + ] -> norm -> head

One row at a time, and no cache: a row is short. Weights are widened one slice of a matrix at a
time, so a model needs hardly more memory than it has already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from interlace.check.streams import Streams
from interlace.config import L2_NORM_EPS, LORA_NORM_EPS, HybridConfig
from interlace.ops.attention import attention_reference
from interlace.ops.conv import short_conv_reference
from interlace.ops.delta_rule import kda_gate_reference, kda_reference
from interlace.ops.mlp import situ_glu_reference, swiglu_reference
from interlace.ops.moe import moe_experts_reference, route_reference
from interlace.ops.mxfp4 import unpack_reference
from interlace.ops.norm import gated_rms_norm_reference, l2norm_reference, rms_norm_reference
from interlace.ops.residual import attention_residual_reference
from interlace.shapes import Float, Int, Tensor

__all__ = ["SLICE", "Choice", "Reference", "Trace"]

SLICE = 1 << 24
"""Numbers of a matrix that are widened at once."""


@dataclass(frozen=True, slots=True)
class Choice:
    """How a mixture of experts chose: with too small a margin, rounding may choose otherwise.

    Args:
        scores: biased scores `[T, E]`.
        margin: for each token, by how much the last chosen expert (or group) beats the first that
            was left out; infinite where none was.
    """

    scores: Float[Tensor, "T E"]
    margin: Float[Tensor, "T"]


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole row.

    Args:
        stream: what is read behind each layer, `[T, D]`: the residual stream, or a mixture of
            several.
        choices: of each layer, None where it has no experts.
        logits: `[T, vocab]`.
    """

    stream: list[Tensor]
    choices: list[Choice | None]
    logits: Float[Tensor, "T vocab"]


class Reference:
    """The model of `config` with these weights, computed the plain way.

    Args:
        config: the model.
        weights: by the names of a state dict, in any dtype.
        dtype: of what passes from one operator to the next; inside they are as wide, and float32
            at least.
        backwards: sum each product from its last term to its first: as good a way as any other, and
            with other rounding.
    """

    def __init__(
        self,
        config: HybridConfig,
        weights: Mapping[str, Tensor],
        dtype: torch.dtype = torch.float64,
        backwards: bool = False,
    ) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.backwards = backwards
        self.wide = torch.promote_types(dtype, torch.float32)

    def forward(self, tokens: Int[Tensor, "T"]) -> Trace:
        """One row from ids to logits."""
        stream, choices = [], []
        streams = self.start(tokens)
        for layer in range(self.config.num_hidden_layers):
            normed = self.norm(streams.x, f"model.layers.{layer}.input_layernorm")
            streams.add_mixer(layer, self.mixer(layer, normed)[0])
            normed = self.norm(streams.x, f"model.layers.{layer}.post_attention_layernorm")
            y, choice = self.feed_forward(layer, normed)
            streams.add_feed_forward(layer, y)
            stream.append(streams.x)
            choices.append(choice)
        return Trace(stream, choices, self.head(self.norm(streams.x, "model.norm")))

    def start(self, tokens: Int[Tensor, "T"]) -> Streams:
        """The streams of a row before the first layer."""
        config = self.config
        x = self.embed(tokens)
        return Streams(x, config.num_hidden_layers, config.attn_res_block_size, self._mixture)

    def embed(self, tokens: Int[Tensor, "T"]) -> Float[Tensor, "T D"]:
        """Rows of the embedding."""
        return self.weights["model.embed_tokens.weight"][tokens].to(self.dtype)

    def head(self, x: Float[Tensor, "T D"]) -> Float[Tensor, "T vocab"]:
        """Logits, float32 at least."""
        return self._product(x, "lm_head").to(self.wide)

    def norm(
        self, x: Float[Tensor, "*rows D"], name: str, eps: float | None = None
    ) -> Float[Tensor, "*rows D"]:
        """RMSNorm with the weight called `name`."""
        return rms_norm_reference(
            x,
            self.weights[f"{name}.weight"].to(self.dtype),
            self.config.rms_norm_eps if eps is None else eps,
            compute_dtype=self.wide,
        )

    def mixer(
        self, layer: int, x: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, "T D"], dict[str, Tensor]]:
        """KDA or Gated MLA of a layer.

        Returns:
            The output, and what its cache must hold after the last token: `state`, `conv_q`,
            `conv_k` and `conv_v`, or `latent`.
        """
        mix = self._mla if self.config.is_global(layer) else self._kda
        y, memory = mix(f"model.layers.{layer}.self_attn.", x[None])
        return y[0], {name: value[0] for name, value in memory.items()}

    def feed_forward(
        self, layer: int, x: Float[Tensor, "T D"]
    ) -> tuple[Float[Tensor, "T D"], Choice | None]:
        """MLP or experts of a layer."""
        if not self.config.is_moe(layer):
            return self._mlp(f"model.layers.{layer}.mlp.", x), None
        return self._moe(f"model.layers.{layer}.block_sparse_moe.", x)

    # -- mixers

    def _kda(self, prefix: str, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Spec section 5."""
        heads, width = self.config.kda_num_heads, self.config.kda_head_dim
        memory: dict[str, Tensor] = {}
        mixed: dict[str, Tensor] = {}
        for letter in "qkv":
            taps = self.weights[f"{prefix}{letter}_conv1d.weight"][:, 0]  # [H*K, W]
            raw = self._product(x, f"{prefix}{letter}_proj")
            y, memory[f"conv_{letter}"] = short_conv_reference(raw, taps, compute_dtype=self.wide)
            mixed[letter] = y.unflatten(-1, (heads, width))  # [1, T, H, K]
        q = l2norm_reference(mixed["q"], L2_NORM_EPS, compute_dtype=self.wide)
        k = l2norm_reference(mixed["k"], L2_NORM_EPS, compute_dtype=self.wide)
        z = self._product(self._product(x, f"{prefix}f_a_proj"), f"{prefix}f_b_proj")
        g = kda_gate_reference(
            z.unflatten(-1, (heads, width)),
            self.weights[f"{prefix}A_log"],
            self.weights[f"{prefix}dt_bias"].unflatten(0, (heads, width)),
            lower_bound=self.config.gate_lower_bound,
            compute_dtype=self.wide,
        )
        beta = torch.sigmoid(self._product(x, f"{prefix}b_proj").to(self.wide))
        state, outs = None, []
        for t in range(x.shape[1]):
            now = slice(t, t + 1)
            o, state = kda_reference(
                q[:, now],
                k[:, now],
                mixed["v"][:, now],
                g[:, now],
                beta[:, now],
                state=state,
                compute_dtype=self.wide,
            )
            outs.append(o)
        assert state is not None
        memory["state"] = state
        gate = self._kda_gate(prefix, x).unflatten(-1, (heads, width))
        o = gated_rms_norm_reference(
            torch.cat(outs, 1).to(self.dtype),
            gate,
            self.weights[f"{prefix}o_norm.weight"],
            self.config.rms_norm_eps,
            compute_dtype=self.wide,
        )
        return self._product(o.flatten(-2), f"{prefix}o_proj"), memory

    def _kda_gate(self, prefix: str, x: Tensor) -> Tensor:
        if self.config.use_full_rank_gate:
            return self._product(x, f"{prefix}g_proj")
        return self._product(self._product(x, f"{prefix}g_a_proj"), f"{prefix}g_b_proj")

    def _mla(self, prefix: str, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Spec section 4."""
        config = self.config
        heads, nope, rank = config.num_attention_heads, config.qk_nope_head_dim, config.kv_lora_rank
        if config.q_lora_rank is None:
            q = self._product(x, f"{prefix}q_proj")
        else:
            down = self._product(x, f"{prefix}q_a_proj")
            normed = self.norm(down, f"{prefix}q_a_layernorm", LORA_NORM_EPS)
            q = self._product(normed, f"{prefix}q_b_proj")
        q = q.unflatten(-1, (heads, config.qk_head_dim))  # [1, T, H, N + P]
        down = self._product(x, f"{prefix}kv_a_proj_with_mqa")
        latent = self.norm(down[..., :rank], f"{prefix}kv_a_layernorm", LORA_NORM_EPS)
        shared = down[..., rank:]
        kv = self._product(latent, f"{prefix}kv_b_proj").unflatten(-1, (heads, -1))
        k_nope, v = kv[..., :nope], kv[..., nope:]
        k = torch.cat([k_nope, shared[..., None, :].expand(*k_nope.shape[:-1], -1)], -1)
        o = attention_reference(q, k, v, compute_dtype=self.wide).flatten(-2)
        if config.mla_use_output_gate:
            o = o * torch.sigmoid(self._product(x, f"{prefix}g_proj"))
        memory = {"latent": torch.cat([latent, shared], -1)}
        return self._product(o.to(self.dtype), f"{prefix}o_proj"), memory

    # -- feed-forward

    def _mlp(self, prefix: str, x: Tensor) -> Tensor:
        """Spec section 7.1."""
        gate = self._product(x, f"{prefix}gate_proj")
        up = self._product(x, f"{prefix}up_proj")
        hidden = self._glu(gate, up, compute_dtype=self.wide)
        return self._product(hidden, f"{prefix}down_proj")

    def _glu(self, gate: Tensor, up: Tensor, *, compute_dtype: torch.dtype) -> Tensor:
        config = self.config
        if config.hidden_act == "silu":
            return swiglu_reference(gate, up, compute_dtype=compute_dtype)
        caps = config.activation_situ_beta, config.activation_situ_linear_beta
        return situ_glu_reference(gate, up, *caps, compute_dtype=compute_dtype)

    def _moe(self, prefix: str, x: Tensor) -> tuple[Tensor, Choice]:
        """Spec sections 7.2 and 7.3."""
        config = self.config
        weight = self.weights[f"{prefix}gate.weight"]
        bias = self.weights[f"{prefix}gate.e_score_correction_bias"]
        assert config.num_experts_per_token is not None
        indices, shares = route_reference(
            x,
            weight,
            bias,
            top_k=config.num_experts_per_token,
            num_groups=config.num_expert_group,
            topk_group=config.topk_group,
            renormalize=config.moe_renormalize,
            scaling=config.routed_scaling_factor,
            compute_dtype=self.wide,
        )
        scores = torch.sigmoid(x.to(self.wide) @ weight.to(self.wide).T) + bias.to(self.wide)
        choice = Choice(scores, _margin(scores, indices, config))
        w1, w2, w3 = (_Experts(self.weights, f"{prefix}experts.", w) for w in ("w1", "w2", "w3"))
        latent = config.routed_expert_hidden_size is not None
        rows = self._product(x, f"{prefix}routed_expert_down_proj") if latent else x
        y = moe_experts_reference(
            rows, indices, shares, w1, w2, w3, glu=self._glu, compute_dtype=self.dtype
        )
        if config.latent_moe_use_norm:
            y = self.norm(y, f"{prefix}routed_expert_norm")
        if latent:
            y = self._product(y, f"{prefix}routed_expert_up_proj")
        if config.num_shared_experts:
            y = y + self._mlp(f"{prefix}shared_experts.", x)
        return y, choice

    # -- residuals

    def _mixture(self, bank: list[Tensor], live: Tensor, read: str) -> Tensor:
        """Spec section 6."""
        return attention_residual_reference(
            bank,
            live,
            self.weights[f"{read}_norm.weight"],
            self.weights[f"{read}_proj.weight"][0],
            self.config.rms_norm_eps,
            compute_dtype=self.wide,
        )

    # -- matrices

    def _product(self, x: Tensor, name: str) -> Tensor:
        """`x` times the transposed matrix called `name`, widened slice by slice."""
        weight = self.weights[f"{name}.weight"]
        rows = max(1, SLICE // weight.shape[1])
        if self.backwards:
            x, weight = x.flip(-1), weight.flip(-1)
        parts = [x @ part.to(self.dtype).T for part in weight.split(rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class _Experts(Sequence[Tensor]):
    """One matrix of every expert of a layer; a packed one is expanded when it is asked for."""

    def __init__(self, weights: Mapping[str, Tensor], prefix: str, name: str) -> None:
        self._weights, self._prefix, self._name = weights, prefix, name
        self._expanded: dict[int, Tensor] = {}

    def __len__(self) -> int:
        end = f".{self._name}.weight"
        return sum(
            n.startswith(self._prefix) and n.removesuffix("_packed").endswith(end)
            for n in self._weights
        )

    def __getitem__(self, e: Any) -> Any:
        name = f"{self._prefix}{e}.{self._name}.weight"
        if name in self._weights:
            return self._weights[name]
        if e not in self._expanded:
            value = unpack_reference(
                self._weights[f"{name}_packed"], self._weights[f"{name}_scale"]
            )
            # tokens choose the same experts again, but a layer of them may be larger than memory
            if (len(self._expanded) + 1) * value.numel() > SLICE:
                self._expanded.clear()
            self._expanded[e] = value
        return self._expanded[e]


def _margin(scores: Tensor, indices: Tensor, config: HybridConfig) -> Tensor:
    """By how much each token's choice was made, group choice included (spec section 7.2)."""
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, indices, True)
    open_experts = torch.ones_like(chosen)
    margin = scores.new_full(scores.shape[:1], float("inf"))
    if config.num_expert_group > config.topk_group:
        grouped = scores.unflatten(-1, (config.num_expert_group, -1))
        best = grouped.sort(-1, descending=True).values[..., :2].sum(-1)
        ranked = best.sort(-1, descending=True)
        edge = config.topk_group
        margin = ranked.values[:, edge - 1] - ranked.values[:, edge]
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, ranked.indices[:, :edge], True)
        open_experts = kept[..., None].expand_as(grouped).flatten(-2)
    last = scores.masked_fill(~chosen, float("inf")).amin(-1)
    first_out = scores.masked_fill(chosen | ~open_experts, float("-inf")).amax(-1)
    return torch.minimum(margin, last - first_out)

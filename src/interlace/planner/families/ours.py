"""Our own models: every size is a formula of `interlace.config.sizes`; here are only roles."""

from typing import Any

from interlace.config import HybridConfig, sizes
from interlace.config.activations import DELTA_CHUNK
from interlace.planner.description import (
    Description,
    FeedForward,
    Mixer,
    Split,
    Stored,
    Weight,
)

__all__ = ["describe"]

# projection -> how devices share it and whether packing touches it; the rest is whole and unpacked
_ROLES: dict[str, tuple[Split, bool]] = {
    "q": ("heads", True),
    "q_a": ("whole", True),
    "q_b": ("heads", True),
    "kv_a": ("whole", True),
    "kv_b": ("heads", True),
    "gate": ("heads", True),
    "o": ("heads", True),
    "qkv": ("heads", True),
    "conv": ("heads", False),
    "f_a": ("whole", True),
    "f_b": ("heads", True),
    "g_a": ("whole", True),
    "g_b": ("heads", True),
    "beta": ("heads", True),
    "dt_bias": ("heads", False),
    "A_log": ("heads", False),
}


def describe(config: HybridConfig, name: str) -> Description:
    """The description of one of our configs."""
    embedding = config.vocab_size * config.hidden_size
    groups = sizes.parameter_groups(config, stored=False)
    ends = [Weight("embedding", embedding, "vocab"), Weight("norms", config.hidden_size)]
    if not config.tie_word_embeddings:
        ends.append(Weight("head", groups["head"], "vocab"))
    if config.attn_res_block_size is not None:
        ends.append(Weight("attention residuals", 2 * config.hidden_size))
    packed = (config.quantization or {}).get("format") == "mxfp4-pack-quantized"
    return Description(
        name=name,
        family=config.model_type,
        vocab=config.vocab_size,
        hidden=config.hidden_size,
        mixers=tuple(_mixers(config)),
        feed_forwards=tuple(_feed_forwards(config)),
        ends=tuple(ends),
        dtype=config.dtype,
        stored=Stored("mxfp4", frozenset({"routed experts"})) if packed else None,
        max_context=config.max_position_embeddings,
        config=config,
    )


def _mixers(config: HybridConfig) -> Any:
    if config.num_kda_layers:
        heads, key = config.kda_num_heads, config.kda_head_dim
        # report on Kimi Linear, equation 13, per head and token
        chunk = 6 * key * key + 3 * DELTA_CHUNK * key + DELTA_CHUNK**2
        yield (
            Mixer(
                kind="state",
                label="KDA",
                weights=_projections(
                    sizes.kda_parts(config, stored=False), "KDA mixers", sizes.float32_parts(config)
                ),
                heads=heads,
                key_dim=key,
                value_dim=key,
                state=sizes.delta_numbers(config),
                conv=sizes.window_numbers(config),
                state_flops=heads * chunk,
            ),
            config.num_kda_layers,
        )
    if config.num_global_layers:
        yield (
            Mixer(
                kind="mla",
                label="Gated MLA" if config.mla_use_output_gate else "MLA",
                weights=_projections(sizes.mla_parts(config), "MLA mixers"),
                heads=config.num_attention_heads,
                key_dim=config.qk_head_dim,
                value_dim=config.v_head_dim,
                cached=config.latent_dim,
                expanded=sizes.expanded_numbers(config),
                rank=config.kv_lora_rank,
            ),
            config.num_global_layers,
        )


def _projections(
    parts: dict[str, int], group: str, float32: tuple[str, ...] = ()
) -> tuple[Weight, ...]:
    return tuple(
        Weight(group, count, *_ROLES.get(name, ("whole", False)), float32=name in float32)
        for name, count in parts.items()
    )


def _feed_forwards(config: HybridConfig) -> Any:
    """Dense layers and layers with experts, norms and residual mixes of each layer with them."""
    for sparse in (False, True):
        members = [i for i in range(config.num_hidden_layers) if config.is_moe(i) == sparse]
        if not members:
            continue
        groups = sizes.layer_parameters(config, members[0], stored=False)
        weights = [Weight("norms", groups["norms"])]
        if "attention_residuals" in groups:
            weights.append(Weight("attention residuals", groups["attention_residuals"]))
        if not sparse:
            dense = Weight("dense feed-forward", groups["dense_ffn"], "inner", True)
            part = FeedForward(
                kind="dense", weights=(*weights, dense), inner=config.intermediate_size
            )
        else:
            part = _experts(config, groups, weights)
        yield part, len(members)


def _experts(config: HybridConfig, groups: dict[str, int], weights: list[Weight]) -> FeedForward:
    experts, inner = config.num_experts or 0, config.moe_intermediate_size or 0
    visited = config.num_experts_per_token or 0
    # the bias that only selects stays in float32
    weights += [
        Weight("router", groups["router"] - experts),
        Weight("router", experts, float32=True),
        Weight("routed experts", groups["routed_experts"], "experts", True),
    ]
    if "shared_experts" in groups:
        weights.append(Weight("shared experts", groups["shared_experts"], "inner", True))
    if "latent_experts" in groups:
        latent = config.routed_expert_hidden_size or 0
        norm = latent if config.latent_moe_use_norm else 0
        weights.append(Weight("latent of experts", groups["latent_experts"] - norm, packs=True))
        weights.append(Weight("latent of experts", norm))
    return FeedForward(
        kind="experts",
        weights=tuple(weights),
        inner=inner * (visited + config.num_shared_experts),
        experts=experts,
        visited=visited,
        expert_inner=inner,
    )

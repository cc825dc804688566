"""Hybrids with a recurrent state: Qwen3-Next and its successors, Nemotron-H, Jamba."""

from collections.abc import Callable
from dataclasses import replace

from interlace.errors import ConfigError
from interlace.planner.description import Description, FeedForward, Mixer, Weight
from interlace.planner.families import parts
from interlace.planner.families.attention import sparse_layers
from interlace.planner.families.reading import Keys

__all__ = ["READERS"]

_CHUNK = 64
"""Tokens of a chunk of the delta rule, in the count of its operations."""


def _qwen(keys: Keys, name: str) -> Description:
    """Qwen3-Next and Qwen 3.5: gated delta rule, and gated attention in every fourth layer."""
    hidden, layers = keys.count("hidden_size"), keys.count("num_hidden_layers")
    heads, kv_heads = keys.heads()
    head_dim = keys.head_dim(hidden, heads)
    bias = keys.flag("attention_bias", False)
    full = parts.attention(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        qkv_bias=bias,
        out_bias=bias,
        head_norms=True,
        gated=True,
    )
    delta = _gated_delta(keys, hidden)
    named = keys.names_of_layers(
        "layer_types", layers, {"linear_attention": "state", "full_attention": "full"}
    )
    every = keys.take("full_attention_interval")
    if named is None:
        if not isinstance(every, int) or every < 1:
            raise ConfigError(
                "layer_types is missing, and so is full_attention_interval; one of them must say "
                "which layers attend"
            )
        named = ["state" if (i + 1) % every else "full" for i in range(layers)]
    norms = parts.norms(2 * hidden)
    dense_only = keys.family == "qwen3_5_text"
    feed_forwards: list[FeedForward] = []
    if not dense_only:
        mixture = parts.experts(
            norms,
            hidden=hidden,
            number=keys.count("num_experts"),
            visited=keys.count("num_experts_per_tok"),
            inner=keys.count("moe_intermediate_size"),
            shared=keys.count("shared_expert_intermediate_size"),
            shared_gate=True,
        )
        sparse = sparse_layers(keys, layers) if keys.family == "qwen3_next" else [True] * layers
        feed_forwards = [mixture] * layers
    if dense_only or not all(sparse):
        dense = parts.gated_mlp(hidden, keys.count("intermediate_size"), norms)
        feed_forwards = [
            dense if dense_only or not sparse[i] else feed_forwards[i] for i in range(layers)
        ]
    keys.take("intermediate_size")
    return parts.describe(
        keys,
        name,
        hidden=hidden,
        mixers=[delta if kind == "state" else full for kind in named],
        feed_forwards=feed_forwards,
        tied=False,
    )


def _gated_delta(keys: Keys, hidden: int) -> Mixer:
    key_heads, heads = keys.count("linear_num_key_heads"), keys.count("linear_num_value_heads")
    key, value = keys.count("linear_key_head_dim"), keys.count("linear_value_head_dim")
    width = keys.count("linear_conv_kernel_dim")
    if heads % key_heads:
        raise ConfigError(
            f"linear_num_key_heads must divide linear_num_value_heads, got {key_heads} and {heads}"
        )
    keys_wide, values_wide = key_heads * key, heads * value
    channels = 2 * keys_wide + values_wide
    group = "linear mixers"
    chunk = 6 * key * value + 3 * _CHUNK * (key + value) // 2 + _CHUNK**2
    return Mixer(
        kind="state",
        label="gated delta rule",
        weights=(
            Weight(group, hidden * (channels + values_wide + 2 * heads), "heads", True),
            Weight(group, channels * width, "heads"),
            Weight(group, 2 * heads, "heads"),
            Weight(group, value),
            Weight(group, values_wide * hidden, "heads", True),
        ),
        heads=key_heads,
        state=heads * key * value,
        conv=(width - 1) * channels,
        state_flops=heads * chunk,
    )


_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_BLOCKS = {
    "mamba": "mamba",
    "linear_attention": "mamba",
    "attention": "attention",
    "full_attention": "attention",
    "mlp": "mlp",
    "moe": "moe",
}


def _nemotron_h(keys: Keys, name: str) -> Description:
    """Nemotron-H: one mixer or one feed-forward per layer, by a pattern."""
    hidden = keys.count("hidden_size")
    heads, kv_heads = keys.heads()
    head_dim = keys.head_dim(hidden, heads, "head_dim", "attention_head_dim")
    blocks = _blocks(keys)
    keys.refuse("sliding_window", None, "no released model of this family has a window")
    for flag in ("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"):
        keys.refuse(flag, False, "no released model of this family has it")
    keys.refuse("moe_latent_size", None, "experts in a latent are not counted for this family")
    norm = parts.norms(hidden)
    kinds: dict[str, Mixer | FeedForward] = {}
    if "attention" in blocks:
        kinds["attention"] = _with(
            parts.attention(hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=head_dim), norm
        )
    if "mamba" in blocks:
        kinds["mamba"] = _with(_mamba2(keys, hidden), norm)
    if "mlp" in blocks:
        inner = keys.count("intermediate_size")
        kinds["mlp"] = parts.gated_mlp(hidden, inner, norm, matrices=2)
    if "moe" in blocks:
        number = keys.count("n_routed_experts")
        kinds["moe"] = parts.experts(
            norm,
            hidden=hidden,
            number=number,
            visited=keys.count("num_experts_per_tok"),
            inner=keys.count("moe_intermediate_size"),
            shared=keys.count("moe_shared_expert_intermediate_size"),
            selects=True,
            matrices=2,
        )
    # what a pattern does not use says nothing
    unused = """intermediate_size moe_intermediate_size n_routed_experts num_experts_per_tok
        moe_shared_expert_intermediate_size n_shared_experts mamba_num_heads mamba_head_dim
        n_groups ssm_state_size conv_kernel use_conv_bias expand mamba_d_conv
        mamba_ssm_cache_dtype num_hidden_layers mtp_layers_block_type"""
    for key in unused.split():
        keys.left.pop(key, None)
    made = [kinds[block] for block in blocks]
    return parts.describe(
        keys,
        name,
        hidden=hidden,
        mixers=[part for part in made if isinstance(part, Mixer)],
        feed_forwards=[part for part in made if isinstance(part, FeedForward)],
        tied=False,
    )


def _blocks(keys: Keys) -> list[str]:
    pattern, named = keys.take("hybrid_override_pattern"), keys.take("layers_block_type")
    if pattern is not None:
        unknown = sorted(set(str(pattern)) - set(_PATTERN))
        if not isinstance(pattern, str) or unknown:
            raise ConfigError(
                f"hybrid_override_pattern must be made of {', '.join(_PATTERN)}, got {pattern!r}"
            )
        blocks = [_PATTERN[letter] for letter in pattern]
    elif isinstance(named, list) and all(block in _BLOCKS for block in named):
        blocks = [_BLOCKS[block] for block in named]
    else:
        raise ConfigError(
            "hybrid_override_pattern is missing, and so is layers_block_type with names out of "
            f"{', '.join(_BLOCKS)}; one of them must say what each layer is"
        )
    layers = keys.take("num_hidden_layers")
    if layers not in (None, len(blocks)):
        raise ConfigError(
            f"num_hidden_layers is {layers!r}, but the pattern has {len(blocks)} layers; correct "
            "one"
        )
    return blocks


def _with(mixer: Mixer, norm: Weight) -> Mixer:
    return replace(mixer, weights=(norm, *mixer.weights))


def _mamba2(keys: Keys, hidden: int) -> Mixer:
    heads, head_dim = keys.count("mamba_num_heads"), keys.count("mamba_head_dim")
    groups, state = keys.count("n_groups"), keys.count("ssm_state_size")
    width = keys.count("conv_kernel", "mamba_d_conv", default=4)
    bias = keys.flag("use_conv_bias", True)
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    group = "linear mixers"
    chunk = 4 * state * head_dim + _CHUNK * (state + head_dim)
    return Mixer(
        kind="state",
        label="Mamba-2",
        weights=(
            Weight(group, hidden * (inner + channels + heads), "heads", True),
            Weight(group, channels * (width + (1 if bias else 0)), "heads"),
            Weight(group, 3 * heads, "heads"),
            Weight(group, inner, "heads"),
            Weight(group, inner * hidden, "heads", True),
        ),
        heads=heads,
        state=heads * head_dim * state,
        conv=(width - 1) * channels,
        state_flops=heads * chunk,
    )


def _jamba(keys: Keys, name: str) -> Description:
    """Jamba: Mamba, attention in one layer of a period, experts in every second."""
    hidden, layers = keys.count("hidden_size"), keys.count("num_hidden_layers")
    heads, kv_heads = keys.heads()
    full = parts.attention(
        hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=keys.head_dim(hidden, heads)
    )
    mamba = _mamba1(keys, hidden)
    period, offset = keys.count("attn_layer_period"), keys.count("attn_layer_offset", least=0)
    every, first = keys.count("expert_layer_period"), keys.count("expert_layer_offset", least=0)
    inner = keys.count("intermediate_size")
    norms = parts.norms(2 * hidden)
    dense = parts.gated_mlp(hidden, inner, norms)
    mixture = parts.experts(
        norms,
        hidden=hidden,
        number=keys.count("num_experts"),
        visited=keys.count("num_experts_per_tok"),
        inner=inner,
    )
    return parts.describe(
        keys,
        name,
        hidden=hidden,
        mixers=[full if i % period == offset else mamba for i in range(layers)],
        feed_forwards=[mixture if i % every == first else dense for i in range(layers)],
        tied=False,
    )


def _mamba1(keys: Keys, hidden: int) -> Mixer:
    inner = keys.count("mamba_expand", default=2) * hidden
    state, width = keys.count("mamba_d_state"), keys.count("mamba_d_conv")
    rank = keys.take("mamba_dt_rank")
    if rank in (None, "auto"):
        rank = -(-hidden // 16)
    bias = keys.flag("mamba_conv_bias", True)
    keys.refuse("mamba_proj_bias", False, "no released model of this family has it")
    keys.take("mamba_inner_layernorms")
    group = "linear mixers"
    return Mixer(
        kind="state",
        label="Mamba",
        weights=(
            Weight(group, hidden * 2 * inner, "heads", True),
            Weight(group, inner * (width + (1 if bias else 0)), "heads"),
            Weight(group, (rank + 2 * state) * inner, "heads", True),
            Weight(group, rank * inner, "heads", True),
            Weight(group, inner * (state + 2), "heads"),
            Weight(group, rank + 2 * state),
            Weight(group, inner * hidden, "heads", True),
        ),
        # channels are independent of each other: any divisor of them splits a layer
        heads=inner,
        state=inner * state,
        conv=(width - 1) * inner,
        state_flops=9 * inner * state,
    )


READERS: dict[str, Callable[[Keys, str], Description]] = {
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"), _qwen),
    "nemotron_h": _nemotron_h,
    "jamba": _jamba,
}
"""Reader of each `model_type` of this file."""

"""Families whose cache is keys and values per head: grouped queries, windows, and mixes of both."""

from collections.abc import Callable

from interlace.errors import ConfigError
from interlace.planner.description import Description, FeedForward, Mixer
from interlace.planner.families import parts
from interlace.planner.families.reading import Keys

__all__ = ["READERS", "sparse_layers"]

_KINDS = {"full_attention": "full", "sliding_attention": "window"}


def _llama(keys: Keys, name: str) -> Description:
    """Llama, Mistral and Mixtral, Qwen 2 and Qwen 3: pre-norm, SwiGLU or experts."""
    family = keys.family
    hidden, layers = keys.count("hidden_size"), keys.count("num_hidden_layers")
    heads, kv_heads = keys.heads()
    head_dim = keys.head_dim(hidden, heads)
    bias = keys.flag("attention_bias", family == "qwen2")
    windows = _windows(keys, layers)

    def mixer(window: int | None) -> Mixer:
        return parts.attention(
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=window,
            qkv_bias=bias,
            out_bias=bias and family != "qwen2",
            head_norms=family.startswith("qwen3"),
        )

    if keys.flag("mlp_bias", False):
        raise ConfigError("mlp_bias must be false, got true; no released model of this family has")
    return parts.describe(
        keys,
        name,
        hidden=hidden,
        mixers=[mixer(window) for window in windows],
        feed_forwards=_feed_forwards(keys, hidden, layers),
        tied=False,
    )


def _feed_forwards(keys: Keys, hidden: int, layers: int) -> list[FeedForward]:
    norms = parts.norms(2 * hidden)
    if keys.family == "mixtral":
        mixture = parts.experts(
            norms,
            hidden=hidden,
            number=keys.count("num_local_experts"),
            visited=keys.count("num_experts_per_tok"),
            inner=keys.count("intermediate_size"),
        )
        return [mixture] * layers
    if keys.family != "qwen3_moe":
        return [parts.gated_mlp(hidden, keys.count("intermediate_size"), norms)] * layers
    sparse = sparse_layers(keys, layers)
    dense = parts.gated_mlp(hidden, keys.count("intermediate_size"), norms)
    mixture = parts.experts(
        norms,
        hidden=hidden,
        number=keys.count("num_experts", "num_local_experts"),
        visited=keys.count("num_experts_per_tok"),
        inner=keys.count("moe_intermediate_size"),
    )
    return [mixture if is_sparse else dense for is_sparse in sparse]


def sparse_layers(keys: Keys, layers: int) -> list[bool]:
    """Which layers have experts, by the rule of the Qwen classes."""
    step = keys.count("decoder_sparse_step", default=1)
    dense = keys.take("mlp_only_layers") or []
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def _windows(keys: Keys, layers: int) -> list[int | None]:
    """The window of each layer, None where it sees everything."""
    named = keys.names_of_layers("layer_types", layers, _KINDS)
    window = keys.take("sliding_window")
    used, first = keys.flag("use_sliding_window", keys.family in ("mistral", "mixtral")), 0
    if keys.family.startswith("qwen"):
        first = keys.count("max_window_layers", default=layers, least=0) if used else layers
        keys.take("max_window_layers")
    if window is not None and (not isinstance(window, int) or window < 1):
        raise ConfigError(f"sliding_window must be a positive integer or null, got {window!r}")
    if named is None:
        return [window if used and i >= first else None for i in range(layers)]
    if "window" in named and window is None:
        raise ConfigError("layer_types names sliding_attention, but sliding_window is missing")
    return [window if kind == "window" else None for kind in named]


def _gemma(keys: Keys, name: str) -> Description:
    """Gemma 2 and Gemma 3: a pattern of windows, four norms per layer, tied ends."""
    third = keys.family == "gemma3_text"
    hidden = keys.count("hidden_size", default=2304)
    layers = keys.count("num_hidden_layers", default=26)
    heads = keys.count("num_attention_heads", default=8)
    kv_heads = keys.count("num_key_value_heads", default=4)
    head_dim = keys.count("head_dim", default=256)
    if heads % kv_heads:
        raise ConfigError(
            f"num_key_value_heads must divide num_attention_heads, got {kv_heads} and {heads}"
        )
    window = keys.count("sliding_window", default=4096)
    pattern = keys.take("sliding_window_pattern", "_sliding_window_pattern")
    named = keys.names_of_layers("layer_types", layers, _KINDS)
    if named is None:
        every = pattern or (6 if third else 2)
        if not pattern:
            keys.defaults.append(f"every layer {every} global")
        named = ["window" if (i + 1) % every else "full" for i in range(layers)]
    mixers = [
        parts.attention(
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=window if kind == "window" else None,
            qkv_bias=False,
            head_norms=third,
        )
        for kind in named
    ]
    keys.refuse("attention_bias", False, "no released model of this family has biases")
    inner = keys.count("intermediate_size", default=9216)
    dense = parts.gated_mlp(hidden, inner, parts.norms(4 * hidden))
    vocab = keys.count("vocab_size", default=262_208 if third else 256_000)
    return parts.describe(
        keys,
        name,
        hidden=hidden,
        mixers=mixers,
        feed_forwards=[dense] * layers,
        tied=True,
        vocab=vocab,
    )


def _gpt_oss(keys: Keys, name: str) -> Description:
    """gpt-oss: windows and global layers in turn, sinks, biases everywhere, packed experts."""
    hidden, layers = keys.count("hidden_size"), keys.count("num_hidden_layers")
    heads, kv_heads = keys.heads()
    head_dim = keys.head_dim(hidden, heads)
    window = keys.count("sliding_window")
    bias = keys.flag("attention_bias", True)
    named = keys.names_of_layers("layer_types", layers, _KINDS)
    if named is None:
        keys.defaults.append("layers with a window and without in turn")
        named = ["full" if i % 2 else "window" for i in range(layers)]
    mixers = [
        parts.attention(
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=window if kind == "window" else None,
            qkv_bias=bias,
            out_bias=bias,
            sinks=True,
        )
        for kind in named
    ]
    inner = keys.count("intermediate_size")
    mixture = parts.experts(
        parts.norms(2 * hidden),
        hidden=hidden,
        number=keys.count("num_local_experts"),
        visited=keys.count("num_experts_per_tok", "experts_per_token"),
        inner=inner,
        router_bias=True,
        expert_bias=2 * inner + hidden,
    )
    return parts.describe(
        keys,
        name,
        hidden=hidden,
        mixers=mixers,
        feed_forwards=[mixture] * layers,
        tied=False,
    )


READERS: dict[str, Callable[[Keys, str], Description]] = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"), _llama),
    "gemma2": _gemma,
    "gemma3_text": _gemma,
    "gpt_oss": _gpt_oss,
}
"""Reader of each `model_type` of this file."""

"""Families of multi-head latent attention: DeepSeek V2, V3 and V3.2, Kimi K2.

One latent per token for all heads. `num_key_value_heads` means nothing here and is not read.
"""

from collections.abc import Callable

from interlace.errors import ConfigError
from interlace.planner.description import Description, FeedForward, Mixer, Weight
from interlace.planner.families import parts
from interlace.planner.families.reading import Keys

__all__ = ["READERS"]

_GROUP = "MLA mixers"


def _deepseek(keys: Keys, name: str) -> Description:
    hidden, layers = keys.count("hidden_size"), keys.count("num_hidden_layers")
    for unread in ("num_key_value_heads", "head_dim"):
        keys.take(unread)
    # names of layers that this family has one kind of, and lists that say again what the counts say
    keys.names_of_layers(
        "layer_types",
        layers,
        dict.fromkeys(("full_attention", "indexed_attention", "deepseek_sparse_attention"), "mla"),
    )
    mixer = _mixer(keys, hidden)
    feed_forwards = _feed_forwards(keys, hidden, layers)
    return parts.describe(
        keys,
        name,
        hidden=hidden,
        mixers=[mixer] * layers,
        feed_forwards=feed_forwards,
        tied=False,
    )


def _mixer(keys: Keys, hidden: int) -> Mixer:
    heads = keys.count("num_attention_heads")
    nope, shared = keys.count("qk_nope_head_dim"), keys.count("qk_rope_head_dim", least=0)
    value, rank = keys.count("v_head_dim"), keys.count("kv_lora_rank")
    low = keys.take("q_lora_rank")
    query = heads * (nope + shared)
    given = keys.take("qk_head_dim")
    if given not in (None, nope + shared):
        raise ConfigError(
            f"qk_head_dim is {given!r}, but qk_nope_head_dim + qk_rope_head_dim is "
            f"{nope + shared}; drop it or correct it"
        )
    keys.refuse("attention_bias", False, "no released model of this family has biases")
    keys.refuse("mlp_bias", False, "no released model of this family has biases")
    if low is None:
        weights = [Weight(_GROUP, hidden * query, "heads", True)]
    elif not isinstance(low, int) or low < 1:
        raise ConfigError(f"q_lora_rank must be a positive integer or null, got {low!r}")
    else:
        weights = [
            Weight(_GROUP, hidden * low, packs=True),
            Weight(_GROUP, low),
            Weight(_GROUP, low * query, "heads", True),
        ]
    weights += [
        Weight(_GROUP, hidden * (rank + shared), packs=True),
        Weight(_GROUP, rank),
        Weight(_GROUP, rank * heads * (nope + value), "heads", True),
        Weight(_GROUP, heads * value * hidden, "heads", True),
    ]
    index_heads = index_dim = 0
    chosen = None
    if keys.family == "deepseek_v32":
        index_heads, index_dim = keys.count("index_n_heads"), keys.count("index_head_dim")
        chosen = keys.count("index_topk")
        if low is None:
            raise ConfigError("q_lora_rank must be set: the indexer reads the low-rank query")
        weights += [
            Weight("indexer", index_heads * index_dim * low, packs=True),
            Weight("indexer", index_dim * hidden, packs=True),
            Weight("indexer", index_heads * hidden + 2 * index_dim),
        ]
    return Mixer(
        kind="mla",
        label="MLA" if chosen is None else f"MLA over {chosen:,} chosen tokens",
        weights=tuple(weights),
        heads=heads,
        key_dim=nope + shared,
        value_dim=value,
        cached=rank + shared,
        expanded=heads * (nope + shared + value),
        rank=rank,
        index_dim=index_dim,
        index_heads=index_heads,
        chosen=chosen,
    )


def _feed_forwards(keys: Keys, hidden: int, layers: int) -> list[FeedForward]:
    norms = parts.norms(2 * hidden)
    dense = parts.gated_mlp(hidden, keys.count("intermediate_size"), norms)
    number = keys.take("n_routed_experts")
    if number is None:
        return [dense] * layers
    keys.left["n_routed_experts"] = number
    first = keys.count("first_k_dense_replace", default=0, least=0)
    every = keys.count("moe_layer_freq", default=1)
    inner = keys.count("moe_intermediate_size")
    shared = keys.take("n_shared_experts") or 0
    number, visited = keys.count("n_routed_experts"), keys.count("num_experts_per_tok")
    if visited > number:
        raise ConfigError(
            f"num_experts_per_tok must be at most n_routed_experts ({number}), got {visited}"
        )
    mixture = parts.experts(
        norms,
        hidden=hidden,
        number=number,
        visited=visited,
        inner=inner,
        shared=shared * inner,
        # the bias that only selects came with V3
        selects=keys.family != "deepseek_v2",
    )
    named = keys.names_of_layers("mlp_layer_types", layers, {"dense": "", "sparse": "x"})
    sparse = [i >= first and i % every == 0 for i in range(layers)]
    if named is not None and [bool(kind) for kind in named] != sparse:
        raise ConfigError(
            f"mlp_layer_types contradicts first_k_dense_replace {first} and moe_layer_freq "
            f"{every}; drop one"
        )
    return [mixture if is_sparse else dense for is_sparse in sparse]


READERS: dict[str, Callable[[Keys, str], Description]] = dict.fromkeys(
    ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"), _deepseek
)
"""Reader of each `model_type` of this file."""

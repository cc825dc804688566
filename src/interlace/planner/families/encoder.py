"""Encoders: they read a text once and keep nothing of it."""

from collections.abc import Callable
from dataclasses import replace

from interlace.planner.description import Description, Weight
from interlace.planner.families import parts
from interlace.planner.families.reading import Keys

__all__ = ["READERS"]


def _bert(keys: Keys, name: str) -> Description:
    """BERT without a head for a task, its pooler counted."""
    hidden, layers = keys.count("hidden_size"), keys.count("num_hidden_layers")
    heads = keys.count("num_attention_heads")
    mixer = parts.attention(
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=keys.head_dim(hidden, heads),
        qkv_bias=True,
        out_bias=True,
    )
    inner = keys.count("intermediate_size")
    extra = parts.norms(4 * hidden + inner + hidden)
    dense = parts.gated_mlp(hidden, inner, extra, matrices=2)
    positions = keys.count("max_position_embeddings") + keys.count("type_vocab_size", default=2)
    ends = (
        Weight("embedding", positions * hidden),
        # the embedding's norm has a bias
        parts.norms(hidden),
        Weight("head", hidden * hidden + hidden),
    )
    return parts.describe(
        keys,
        name,
        hidden=hidden,
        mixers=[replace(mixer, cached=0, label="attention (encoder)")] * layers,
        feed_forwards=[dense] * layers,
        tied=True,
        ends=ends,
        caches=False,
    )


READERS: dict[str, Callable[[Keys, str], Description]] = {"bert": _bert}
"""Reader of each `model_type` of this file."""

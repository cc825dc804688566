"""Layer kinds that several families share, from their widths."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from interlace.planner.description import Description, FeedForward, Mixer, Weight
from interlace.planner.families.reading import Keys

__all__ = ["attention", "count", "describe", "experts", "gated_mlp", "norms"]

Part = TypeVar("Part", Mixer, FeedForward)


def norms(numbers: int) -> Weight:
    """Norms of one layer."""
    return Weight("norms", numbers)


def attention(
    *,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    window: int | None = None,
    qkv_bias: bool = False,
    out_bias: bool = False,
    head_norms: bool = False,
    gated: bool = False,
    sinks: bool = False,
) -> Mixer:
    """Multi-head or grouped-query attention, over everything or over a window."""
    query, key = heads * head_dim, kv_heads * head_dim
    projected = query * (2 if gated else 1)
    group = "attention"
    weights = [
        Weight(group, hidden * projected, "heads", True),
        Weight(group, 2 * hidden * key, "kv_heads", True),
        Weight(group, hidden * query, "heads", True),
    ]
    if qkv_bias:
        weights += [Weight(group, projected, "heads"), Weight(group, 2 * key, "kv_heads")]
    if out_bias:
        weights.append(Weight(group, hidden))
    if head_norms:
        weights.append(Weight(group, 2 * head_dim))
    if sinks:
        weights.append(Weight(group, heads, "heads"))
    name = "attention" if window is None else f"window of {window:,}"
    return Mixer(
        kind="attention" if window is None else "window",
        label=name,
        weights=tuple(weights),
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        cached=2 * key,
        window=window,
    )


def gated_mlp(hidden: int, inner: int, *extra: Weight, matrices: int = 3) -> FeedForward:
    """A dense feed-forward of three matrices (two without a gate)."""
    weight = Weight("dense feed-forward", matrices * hidden * inner, "inner", True)
    return FeedForward(kind="dense", weights=(*extra, weight), inner=inner)


def experts(
    *extra: Weight,
    hidden: int,
    number: int,
    visited: int,
    inner: int,
    shared: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    selects: bool = False,
    expert_bias: int = 0,
    matrices: int = 3,
) -> FeedForward:
    """A mixture of experts.

    Args:
        extra: further weights of the layer.
        hidden: width in and out.
        number: routed experts.
        visited: of them, how many a token visits.
        inner: hidden width of one.
        shared: hidden width of the experts that every token visits, together.
        shared_gate: one gate on their output.
        router_bias: the router adds one.
        selects: a float32 bias that only selects.
        expert_bias: biases of one expert.
        matrices: of one expert.
    """
    weights = [
        *extra,
        Weight("router", number * hidden + (number if router_bias else 0)),
        Weight("routed experts", number * matrices * hidden * inner, "experts", True),
    ]
    if selects:
        weights.append(Weight("router", number, float32=True))
    if expert_bias:
        weights.append(Weight("routed experts", number * expert_bias, "experts"))
    if shared:
        weights.append(Weight("shared experts", matrices * hidden * shared, "inner", True))
    if shared_gate:
        weights.append(Weight("shared experts", hidden))
    return FeedForward(
        kind="experts",
        weights=tuple(weights),
        inner=visited * inner + shared,
        experts=number,
        visited=visited,
        expert_inner=inner,
    )


def count(parts: Iterable[Part]) -> tuple[tuple[Part, int], ...]:
    """Equal layers counted, in the order of their first."""
    return tuple(Counter(parts).items())


def describe(
    keys: Keys,
    name: str,
    *,
    hidden: int,
    mixers: Sequence[Mixer],
    feed_forwards: Sequence[FeedForward],
    tied: bool,
    ends: Sequence[Weight] = (),
    vocab: int | None = None,
    **more: Any,
) -> Description:
    """The description of a foreign model, with what its config leaves to say."""
    vocab = keys.count("vocab_size") if vocab is None else vocab
    tied = keys.flag("tie_word_embeddings", tied)
    all_ends = [Weight("embedding", vocab * hidden, "vocab"), norms(hidden), *ends]
    if not tied:
        all_ends.append(Weight("head", vocab * hidden, "vocab"))
    longest = keys.take("max_position_embeddings", "model_max_length")
    return Description(
        name=name,
        family=keys.family,
        vocab=vocab,
        hidden=hidden,
        mixers=count(mixers),
        feed_forwards=count(feed_forwards),
        ends=tuple(all_ends),
        dtype=keys.dtype(),
        stored=keys.stored(),
        max_context=longest if isinstance(longest, int) else None,
        notes=keys.finish(),
        **more,
    )

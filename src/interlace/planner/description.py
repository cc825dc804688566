"""One description for every family: what a model keeps, reads and computes, by layer kind.

    Description
      mixers         (Mixer, how many layers) ...        attention | window | mla | state
      feed_forwards  (FeedForward, how many layers) ...  dense | experts
      ends           embedding, head, last norm

Each family's reader (`interlace.planner.families`) fills it from a `config.json`; for our own
models every number comes from the formulas of `interlace.config`. What memory and time follow from
it is said elsewhere (`memory`, `roofline`), once for all families.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from interlace.config import HybridConfig

__all__ = ["Description", "FeedForward", "Mixer", "Stored", "Weight"]

Split = Literal["whole", "heads", "kv_heads", "vocab", "inner", "experts"]
"""How devices share a weight: each holds all of it, or its share of that axis."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Parameters of one tensor, or of several alike, in one layer.

    Args:
        group: where a report counts them.
        count: how many.
        split: how devices share them.
        packs: a matrix that fp8, int8 and int4 pack; the rest stays as stored.
        float32: never narrower than that.
    """

    group: str
    count: int
    split: Split = "whole"
    packs: bool = False
    float32: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """What mixes tokens in one layer.

    Args:
        kind: `attention` over everything, over a `window`, `mla`, or a `state` of fixed size.
        label: its name in reports.
        weights: its parameters.
        heads: query heads, or heads of a state; what tensor parallelism divides.
        kv_heads: heads of keys and values (attention only).
        key_dim: width of a query and key, per head.
        value_dim: width of a value, per head.
        cached: numbers kept per token, over all heads.
        expanded: numbers per token if keys and values were kept per head (mla).
        rank: width of the latent that holds the values (mla).
        window: tokens that a window reaches back, itself included.
        index_dim: numbers per token that choose which tokens are attended (sparse attention).
        index_heads: query heads of that choice.
        chosen: tokens that it leaves.
        state: numbers of the recurrent state of one sequence.
        conv: numbers of its convolution windows.
        state_flops: operations per token of a prefill chunk, outside the projections.
    """

    kind: Literal["attention", "window", "mla", "state"]
    label: str
    weights: tuple[Weight, ...]
    heads: int = 0
    kv_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    cached: int = 0
    expanded: int = 0
    rank: int = 0
    window: int | None = None
    index_dim: int = 0
    index_heads: int = 0
    chosen: int | None = None
    state: int = 0
    conv: int = 0
    state_flops: int = 0

    def reached(self, memory: int) -> int:
        """Tokens whose cache one query reads."""
        most = [n for n in (self.window, self.chosen) if n is not None]
        return min([memory, *most])

    def decode_flops(self, memory: int, expanded: bool) -> int:
        """Operations of one token against its memory, projections aside."""
        if self.kind == "state":
            # decay, what the key finds, the update, the readout
            return 7 * self.state
        per_head = self.key_dim + self.value_dim
        if self.kind == "mla" and not expanded:
            # all heads against the latent and the shared key, and back to the latent
            per_head = self.cached + self.rank
        index = 2 * self.index_heads * self.index_dim * memory
        return 2 * self.heads * per_head * self.reached(memory) + index

    def prefill_flops(self, tokens: int, past: int) -> int:
        """Operations of `tokens` new ones after `past`, projections aside."""
        if self.kind == "state":
            return self.state_flops * tokens
        pairs = tokens * past + tokens * (tokens + 1) // 2
        limit = self.reached(past + tokens)
        seen = min(pairs, tokens * limit)
        index = 2 * self.index_heads * self.index_dim * pairs
        return 2 * self.heads * (self.key_dim + self.value_dim) * seen + index


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """What works on each token alone in one layer.

    Args:
        kind: `dense` or `experts`.
        weights: its parameters; those of group "routed experts" are read by choice.
        inner: hidden width that one token needs, shared experts included.
        experts: routed experts, or 0.
        visited: of them, how many a token visits.
        expert_inner: hidden width of one.
    """

    kind: Literal["dense", "experts"]
    weights: tuple[Weight, ...]
    inner: int
    experts: int = 0
    visited: int = 0
    expert_inner: int = 0

    def read_share(self, tokens: int) -> float:
        """Expected share of the routed experts that `tokens` tokens read, drawn evenly."""
        if not self.experts:
            return 1.0
        return float(1.0 - (1.0 - self.visited / self.experts) ** tokens)


@dataclass(frozen=True, slots=True)
class Stored:
    """The packing of a published checkpoint.

    Args:
        format: name of the packed format.
        groups: groups of weights that it packs; empty means all matrices that pack.
    """

    format: str
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A model as the planner sees it.

    Args:
        name: what the user called it.
        family: its `model_type`.
        vocab: rows of the embedding.
        hidden: width of the residual stream.
        mixers: each kind of mixer and its number of layers.
        feed_forwards: each kind of feed-forward and its number of layers.
        ends: embedding, head, last norm.
        dtype: of the weights as published.
        stored: how the checkpoint packs some of them, or None.
        state_dtype: of the recurrent states, as their engine allocates them.
        max_context: what the config says it was made for, or None.
        caches: whether it generates at all; an encoder keeps nothing.
        notes: what was read only in part; a plan always shows them.
        config: the config of one of our own models.
    """

    name: str
    family: str
    vocab: int
    hidden: int
    mixers: tuple[tuple[Mixer, int], ...]
    feed_forwards: tuple[tuple[FeedForward, int], ...]
    ends: tuple[Weight, ...]
    dtype: str = "bfloat16"
    stored: Stored | None = None
    state_dtype: str = "float32"
    max_context: int | None = None
    caches: bool = True
    notes: tuple[str, ...] = ()
    config: HybridConfig | None = field(default=None, compare=False)

    def weights(self) -> Iterator[tuple[Weight, int]]:
        """Every weight and how many layers have it."""
        for end in self.ends:
            yield end, 1
        parts: list[tuple[Mixer | FeedForward, int]] = [*self.mixers, *self.feed_forwards]
        for part, layers in parts:
            for weight in part.weights:
                yield weight, layers

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(weight.count * layers for weight, layers in self.weights())

    @property
    def active_parameters(self) -> int:
        """Those that one token uses."""
        idle = 0
        for part, layers in self.feed_forwards:
            if part.experts:
                routed = sum(w.count for w in part.weights if w.group == "routed experts")
                idle += layers * routed * (part.experts - part.visited) // part.experts
        return self.parameters - idle

    @property
    def layers(self) -> str:
        """How many of each kind: `69 KDA + 24 Gated MLA`."""
        return " + ".join(f"{layers} {mixer.label}" for mixer, layers in self.mixers)

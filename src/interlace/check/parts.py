"""One layer at a time: every way of computing its parts, on inputs that come from the reference.

Each part of each layer is given the same input as its reference, rounded once to the dtype of the
model. So an error is the part's own: it is neither inherited from the layers before it nor hidden
by those behind it, and two bad layers are two findings.

    ways of a KDA layer                       ways of a Gated MLA layer
      chunked     one call                      expanded    one call
      recurrent   token by token                absorbed    token by token
      cut at n    two calls with a cache        rebuilt     one call with a cache
      padded      rows in one batch             cut at n, padded, packed
      packed      rows end to end               latent      what its cache holds then
      state       what its cache holds then
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from interlace.caches import DeltaState, LatentCache
from interlace.check.findings import Finding
from interlace.check.measure import bound, error
from interlace.check.reference import Reference
from interlace.check.streams import Streams
from interlace.models import HybridLM
from interlace.ops.attention import LATENT_BACKENDS, LatentCall
from interlace.ops.delta_rule import KDA_BACKENDS, KDACall
from interlace.ops.dispatch import Backend, choose
from interlace.shapes import Tensor

__all__ = ["Judge", "Rows", "check_layer", "cuts", "padded_rows", "row_offsets"]

# what has gone through layers
_TRAVELLED = ("stream", "logits")

Rows = list[Tensor]
"""One tensor `[T, ...]` for each row, of different T."""

Ways = Iterator[tuple[str, Callable[[], Tensor], slice]]
"""Name, the call, and which rows of the expectation it must equal."""


@dataclass(frozen=True, slots=True)
class Judge:
    """The float64 result of a part, and what the plain way in the model's dtype makes of it.

    Args:
        layer: 0-based, or None.
        part: published name.
        kind: in words.
        exact: rows in float64.
        plain: the same rows, the plain way.
        dtype: of the model.
        other: the same rows the plain way in another order, where one sample of rounding says too
            little.
    """

    layer: int | None
    part: str
    kind: str
    exact: Rows
    plain: Rows
    dtype: torch.dtype
    other: Rows | None = None

    def judge(self, way: str, run: Callable[[], Tensor], rows: slice = slice(None)) -> Finding:
        """Run one way and measure it; one that raises is as bad as one that is wrong."""
        exact = torch.cat(self.exact[rows])
        every = torch.cat(self.exact)
        plain_error = max(
            error(torch.cat(sample), every) for sample in (self.plain, self.other or self.plain)
        )
        # rounding that has travelled through layers is chancy: three times as much has been seen
        allowed = bound(plain_error, self.dtype, 4.0 if self.part in _TRAVELLED else 2.0)
        note = ""
        try:
            found = error(run(), exact)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as mistake:  # whatever it is, this way gives no result
            found, note = float("inf"), f"{type(mistake).__name__}: {mistake}".splitlines()[0]
        return Finding(
            self.layer,
            self.part,
            self.kind,
            way,
            found,
            allowed,
            plain_error,
            exact.numel(),
            note,
        )


def cuts(tokens: int) -> list[int]:
    """Where a row is cut in two: inside, at and around the sizes at which ways change."""
    wanted = (1, 5, tokens // 2, tokens - 48, tokens - 1)
    return sorted({cut for cut in wanted if 0 < cut < tokens})


def padded_rows(rows: Rows, filler: float = 0.0) -> tuple[Tensor, Tensor]:
    """Rows as one right-padded batch, and how many tokens of each are real."""
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
    batch = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filler)
    return batch, lengths


def row_offsets(rows: Rows) -> Tensor:
    """Offsets of the rows laid end to end."""
    lengths = torch.tensor([0, *(len(row) for row in rows)], device=rows[0].device)
    return lengths.cumsum(0)


def check_layer(
    lm: HybridLM,
    layer: int,
    streams: list[Streams],
    exact: Reference,
    plain: Reference,
    other: Reference,
) -> list[Finding]:
    """Check the norms, the mixer and the feed-forward of one layer.

    Args:
        lm: the model.
        layer: 0-based.
        streams: of each row before the layer, in float64; taken through it. Mutated.
        exact: the reference in float64.
        plain: the reference in the model's dtype.
        other: the same with products summed backwards.
    """
    block = cast(Any, lm.model.layers[layer])
    config, findings = lm.config, []

    def norm(name: str) -> Rows:
        rows = [row.x.to(plain.dtype) for row in streams]
        full = f"model.layers.{layer}.{name}"
        check = Judge(
            layer,
            name,
            "norm",
            [exact.norm(row.double(), full) for row in rows],
            [plain.norm(row, full) for row in rows],
            plain.dtype,
        )
        module = getattr(block, name)
        findings.append(check.judge("one call", lambda: torch.cat([module(x) for x in rows])))
        return [row.to(plain.dtype) for row in check.exact]

    inputs = norm("input_layernorm")
    wanted, memory = zip(*(exact.mixer(layer, x.double()) for x in inputs), strict=True)
    plainly, plain_memory = zip(*(plain.mixer(layer, x) for x in inputs), strict=True)
    otherwise = [other.mixer(layer, x)[0] for x in inputs]
    kind = "Gated MLA" if config.is_global(layer) else "KDA"
    check = Judge(layer, "self_attn", kind, list(wanted), list(plainly), plain.dtype, otherwise)
    findings += [check.judge(*way) for way in _mixer_ways(lm, layer, inputs)]
    findings += _memory(lm, layer, inputs, list(memory), list(plain_memory), kind)
    for row, y in zip(streams, wanted, strict=True):
        row.add_mixer(layer, y)

    inputs = norm("post_attention_layernorm")
    part, kind = ("block_sparse_moe", "experts") if config.is_moe(layer) else ("mlp", "MLP")
    module = getattr(block, part)
    check = Judge(
        layer,
        part,
        kind,
        [exact.feed_forward(layer, x.double())[0] for x in inputs],
        [plain.feed_forward(layer, x)[0] for x in inputs],
        plain.dtype,
    )
    findings += [check.judge(*way) for way in _feed_forward_ways(module, inputs)]
    for row, y in zip(streams, check.exact, strict=True):
        row.add_feed_forward(layer, y)
    return findings


def _mixer_ways(lm: HybridLM, layer: int, rows: Rows) -> Ways:
    mixer = cast(Any, lm.model.layers[layer]).self_attn
    is_global = lm.config.is_global(layer)
    longest, first = rows[0][None], slice(0, 1)

    def in_calls(*lengths: int) -> Tensor:
        cache = _cache(lm, layer, 1)
        return torch.cat([mixer(x, cache=cache)[0] for x in longest.split(list(lengths), 1)])

    def padded(cached: bool) -> Tensor:
        batch, lengths = padded_rows(rows, filler=3.0)
        cache = _cache(lm, layer, len(rows)) if cached else None
        y = mixer(batch, cache=cache, lengths=lengths)
        return torch.cat([y[b, : len(row)] for b, row in enumerate(rows)])

    def packed() -> Tensor:
        y: Tensor = mixer(torch.cat(rows)[None], cu_seqlens=row_offsets(rows))
        return y[0]

    tokens = len(rows[0])
    in_chunks = _name(choose(KDA_BACKENDS, KDACall(tokens))) == "chunk"
    once = "expanded" if is_global else "chunked" if in_chunks else "one call"
    yield once, lambda: torch.cat([mixer(row[None])[0] for row in rows]), slice(None)
    yield "absorbed" if is_global else "recurrent", lambda: in_calls(*[1] * tokens), first
    if is_global and _name(choose(LATENT_BACKENDS, LatentCall(tokens))) == "rebuilt":
        yield "rebuilt", lambda: in_calls(tokens), first
    for cut in cuts(tokens):
        yield f"cut at {cut}", lambda cut=cut: in_calls(cut, tokens - cut), first  # type: ignore[misc]
    yield "padded", lambda: padded(cached=False), slice(None)
    yield "padded, cached", lambda: padded(cached=True), slice(None)
    yield "packed", packed, slice(None)


def _memory(
    lm: HybridLM,
    layer: int,
    rows: Rows,
    exact: list[dict[str, Tensor]],
    plain: list[dict[str, Tensor]],
    kind: str,
) -> list[Finding]:
    """What the cache holds after a padded batch."""
    mixer = cast(Any, lm.model.layers[layer]).self_attn
    kept: list[Any] = []

    def read(name: str) -> Tensor:
        if not kept:
            cache = _cache(lm, layer, len(rows))
            batch, lengths = padded_rows(rows, filler=3.0)
            mixer(batch, cache=cache, lengths=lengths)
            kept.append(cache)
        (cache,) = kept
        if isinstance(cache, LatentCache):
            view = cache.view()
            return torch.cat([view[b, : len(row)] for b, row in enumerate(rows)])
        value: Tensor = getattr(cache, name)
        if name == "state" and value.dtype.itemsize < torch.float32.itemsize:
            raise TypeError(f"the state must be float32 at least, but is kept in {value.dtype}")
        return value.flatten(0, 1)

    findings = []
    for name in exact[0]:
        check = Judge(
            layer,
            "self_attn",
            kind,
            [m[name] for m in exact],
            [m[name] for m in plain],
            rows[0].dtype,
        )
        findings.append(check.judge(name, lambda name=name: read(name)))  # type: ignore[misc]
    return findings


def _feed_forward_ways(module: Any, rows: Rows) -> Ways:
    def padded() -> Tensor:
        batch, _ = padded_rows(rows, filler=3.0)
        y = module(batch)
        return torch.cat([y[b, : len(row)] for b, row in enumerate(rows)])

    yield "one call", lambda: torch.cat([module(row[None])[0] for row in rows]), slice(None)
    alone = rows[-1]
    last = slice(len(rows) - 1, len(rows))
    yield "token by token", lambda: torch.cat([module(x[None, None])[0] for x in alone]), last
    yield "padded", padded, slice(None)


def _cache(lm: HybridLM, layer: int, batch: int) -> LatentCache | DeltaState:
    return lm.new_cache(batch).layers[layer]


def _name(way: Backend) -> str:
    """What an operator calls this way, without its own name before it."""
    return way.name.rpartition(".")[2]

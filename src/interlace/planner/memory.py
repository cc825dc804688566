"""Bytes on one device, item by item. Each item is fixed + batch * (a + b * tokens).

    weights        fixed                    embedding, mixers, experts, scales of packed formats
    cache          batch * b * tokens       latents, keys and values, up to a window
    state          batch * a                recurrent states, convolution windows
    activations    of a decoding step, and of a prefill chunk: one of the two at a time

Allocated means capacity: a command that knows its length reserves exactly that much.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from interlace.config.activations import decode_activation_bytes, prefill_activation_bytes
from interlace.config.formats import FORMATS, Format
from interlace.errors import InputError
from interlace.planner.description import Description, Mixer, Weight
from interlace.planner.request import Request
from interlace.planner.units import show_bytes

__all__ = ["Item", "activations", "expert_bytes", "items", "weight_format"]


ROUTED = "routed experts"
"""Group of the weights that tokens choose among."""


@dataclass(frozen=True, slots=True)
class Item:
    """One line of the account, on one device.

    Args:
        name: what it is.
        group: `weights`, `cache` or `state`.
        fixed: bytes whatever the batch.
        per_sequence: bytes for each sequence whatever its length.
        per_token: bytes for each token of each sequence.
        most_tokens: tokens at which it stops growing, or None.
        note: what a reader should know.
    """

    name: str
    group: str
    fixed: int = 0
    per_sequence: int = 0
    per_token: int = 0
    most_tokens: int | None = None
    note: str = ""

    def nbytes(self, batch: int, tokens: int) -> int:
        """Bytes for `batch` sequences of `tokens`."""
        kept = tokens if self.most_tokens is None else min(tokens, self.most_tokens)
        return self.fixed + batch * (self.per_sequence + kept * self.per_token)


def items(description: Description, request: Request) -> tuple[Item, ...]:
    """The account of one device, activations aside.

    Raises:
        InputError: devices that do not divide the model, or packed weights that are not known.
    """
    request.check_devices(description)
    return (
        *_weights(description, request),
        *_caches(description, request),
        *_states(description, request),
    )


# -- weights


def weight_format(weight: Weight, description: Description, request: Request) -> Format:
    """The format of one weight under this request.

    Raises:
        InputError: `mxfp4` without experts, or a packed checkpoint of a format that is not known.
    """
    plain = FORMATS[request.activation_dtype(description)]
    chosen = request.weights
    if chosen == "as-stored" and description.stored is not None:
        packing = description.stored
        if packing.format not in FORMATS:
            raise InputError(
                f"weights of {description.name} are packed in a format that is not known "
                f"({packing.format.removeprefix('unknown: ')}); say how they will be kept, such as "
                "weights=int4 or weights=bf16."
            )
        if weight.packs and (not packing.groups or weight.group in packing.groups):
            return FORMATS[packing.format]
    elif chosen == "mxfp4":
        if not any(part.experts for part, _ in description.feed_forwards):
            raise InputError(
                f"weights=mxfp4 packs routed experts, and {description.name} has none; use int4."
            )
        if weight.group == ROUTED and weight.packs:
            return FORMATS["mxfp4"]
    elif chosen in ("fp8", "int8", "int4") and weight.packs:
        return FORMATS[chosen]
    if weight.float32 and plain.bits < 32:
        return FORMATS["float32"]
    return plain


def _weights(description: Description, request: Request) -> Iterator[Item]:
    numbers: dict[tuple[str, str], int] = {}
    scales: dict[tuple[str, str], int] = {}
    for weight, layers, kv_heads in _each(description):
        form = weight_format(weight, description, request)
        count = share(weight, description, request, kv_heads)
        key = (weight.group, form.name)
        numbers[key] = numbers.get(key, 0) + layers * form.number_bytes(count)
        scales[key] = scales.get(key, 0) + layers * form.scales(count)
    on_disk = request.experts == "disk"
    if on_disk:
        yield _expert_cache(description, request)
    for (group, form_name), size in numbers.items():
        if on_disk and group == ROUTED:
            continue
        yield Item(f"{group}, {form_name}", "weights", fixed=size)
        if scales[group, form_name]:
            name = f"scales of {group}, {form_name}"
            yield Item(name, "weights", fixed=scales[group, form_name])


def expert_bytes(description: Description, request: Request) -> tuple[int, int]:
    """Bytes of all routed experts that are this device's, and of those that one token visits."""
    every = visited = 0
    for part, layers in description.feed_forwards:
        for weight in part.weights:
            if weight.group == ROUTED:
                held = share(weight, description, request, 0)
                size = layers * weight_format(weight, description, request).nbytes(held)
                every += size
                visited += -(-size * part.visited // part.experts)
    return every, visited


def _expert_cache(description: Description, request: Request) -> Item:
    """The experts in memory where they are read from disk as tokens choose them."""
    every, visited = expert_bytes(description, request)
    asked = request.expert_cache
    kept = min(every, visited if asked is None else int(asked))
    note = f"of {show_bytes(every)} on disk; a token visits {show_bytes(visited)}"
    return Item("cache of routed experts", "weights", fixed=kept, note=note)


def _each(description: Description) -> Iterator[tuple[Weight, int, int]]:
    """Every weight, the layers that have it, and the key/value heads of its mixer."""
    for end in description.ends:
        yield end, 1, 0
    for mixer, layers in description.mixers:
        for weight in mixer.weights:
            yield weight, layers, mixer.kv_heads
    for part, layers in description.feed_forwards:
        for weight in part.weights:
            yield weight, layers, 0


def share(weight: Weight, description: Description, request: Request, kv_heads: int) -> int:
    """Parameters of `weight` that one device holds."""
    count, tp = weight.count, request.tp
    if weight.split == "vocab":
        return -(-description.vocab // tp) * (count // description.vocab)
    if weight.split == "kv_heads":
        # heads that cannot be divided further are repeated
        return count // kv_heads * max(1, kv_heads // tp)
    if weight.split == "experts":
        return -(-count // (request.ep if request.ep > 1 else tp))
    return count if weight.split == "whole" else -(-count // tp)


# -- what grows, and what does not


def cached_numbers(mixer: Mixer, request: Request) -> int:
    """Numbers that one device keeps per token in one layer of this kind, its indexer aside."""
    if mixer.kind == "mla":
        if request.cache == "latent":
            return mixer.cached
        return -(-mixer.expanded // request.tp)
    if not mixer.kv_heads:
        return 0
    return mixer.cached // mixer.kv_heads * max(1, mixer.kv_heads // request.tp)


def _caches(description: Description, request: Request) -> Iterator[Item]:
    if not description.caches:
        return
    form = request.cache_format(description)
    latent = request.cache == "latent"
    for mixer, layers in description.mixers:
        numbers = cached_numbers(mixer, request)
        if not numbers:
            continue
        note = ""
        if mixer.kind == "mla" and latent:
            name = f"latent cache, {mixer.label}"
            note = "the whole latent on every device" if request.tp > 1 else ""
        else:
            name = f"key/value cache, {mixer.label}"
        if mixer.kv_heads and request.tp > mixer.kv_heads:
            note = f"{mixer.kv_heads} key/value heads, repeated on the devices beyond"
        limit = mixer.window if request.window == "ring" else None
        yield Item(
            name,
            "cache",
            per_token=layers * form.nbytes(numbers),
            most_tokens=limit,
            note=note or f"{layers} layers x {numbers:,} numbers per token",
        )
        if mixer.index_dim:
            size = layers * form.nbytes(mixer.index_dim)
            name = "indexer keys"
            yield Item(name, "cache", per_token=size, note=f"{mixer.index_dim} numbers per token")


def _states(description: Description, request: Request) -> Iterator[Item]:
    states, windows = request.state_format(description), request.conv_format(description)
    for mixer, layers in description.mixers:
        copies = layers * request.state_copies
        for name, numbers, form in (
            (f"recurrent state, {mixer.label}", mixer.state, states),
            (f"convolution windows, {mixer.label}", mixer.conv, windows),
        ):
            if numbers:
                size = copies * form.nbytes(-(-numbers // request.tp))
                yield Item(name, "state", per_sequence=size, note=f"{form.name}, {layers} layers")


# -- activations


def activations(description: Description, request: Request) -> dict[str, int]:
    """Bytes of a decoding step and of a prefill chunk.

    Under tensor parallelism the bound for one device alone is kept: it holds, and is too high.
    """
    context, batch = request.context, request.batch
    chunk = min(request.prefill_chunk, context)
    dtype = request.activation_dtype(description)
    if description.config is not None:
        return {
            "decode": decode_activation_bytes(description.config, batch, context, dtype),
            "prefill": prefill_activation_bytes(description.config, batch, chunk, context, dtype),
        }
    return {
        "decode": _estimate(description, batch, 1, dtype),
        "prefill": _estimate(description, batch, chunk, dtype),
    }


def _estimate(description: Description, batch: int, tokens: int, dtype: str) -> int:
    """An estimate for models that are not run here: stream, widest layer, logits of the last token.

    Attention is taken to keep no scores, as flash kernels do.
    """
    each, rows = FORMATS[dtype].bits // 8, batch * tokens
    wide, hidden = max(each, 4), description.hidden
    widths = [
        sum(w.count for w in mixer.weights if w.packs) // hidden for mixer, _ in description.mixers
    ]
    widths += [3 * part.inner for part, _ in description.feed_forwards]
    stream = rows * hidden * (3 * each + 2 * wide)
    return stream + rows * max(widths) * each + batch * description.vocab * (each + 4 * wide)

"""A plan as numbers that a page can evaluate: every item is fixed + batch * (a + b * tokens).

    models
      activations  bytes, by batch
      weights      format -> devices -> items, and seconds of a step without its past, by batch
      kept         format of the cache -> devices -> items, and lines of seconds per token

A line of seconds is the longer of two sums (bytes over bandwidth, operations over rate), each of
terms `(seconds per token, tokens at which it stops growing, or null)`; what does not grow at all
stops at one token. The page multiplies and adds; nothing is worked out there.

Contexts begin where no activation depends on the context any more.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from interlace.config.activations import KEY_BLOCK
from interlace.errors import InputError
from interlace.planner import memory, roofline
from interlace.planner.description import Description, Mixer
from interlace.planner.plan import Plan
from interlace.planner.request import WEIGHT_FORMATS, Request

__all__ = ["BATCHES", "CACHES", "DEVICES", "coefficients"]

MOST = 10_000_000
"""Largest context of a page, unless more was asked for."""

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CACHES = ("bfloat16", "fp8", "int8", "int4")
DEVICES = (1, 2, 4, 8, 16, 32, 64)
"""What the controls of a page offer, beside what was asked for."""


def coefficients(plans: Sequence[Plan]) -> dict[str, Any]:
    """Everything that the page of these plans evaluates, ready for JSON.

    Args:
        plans: of one question, of several models; the first one's question sets the controls.
    """
    first = plans[0]
    ask = first.request
    cache = ask.cache_format(first.description).name.removesuffix("-row")
    least = max(KEY_BLOCK, ask.prefill_chunk)
    return {
        "context": max(ask.context, least),
        "contexts": [least, max(MOST, ask.context)],
        "batch": ask.batch,
        "batches": sorted({*BATCHES, ask.batch}),
        "weights": ask.weights,
        "cache": cache,
        "devices": ask.tp,
        "ep": ask.ep,
        "memory": first.budget,
        "machine": None if first.machine is None else first.machine.title,
        "models": [_model(plan, least, sorted({*BATCHES, ask.batch}), cache) for plan in plans],
    }


def _model(plan: Plan, least: int, batches: Sequence[int], cache: str) -> dict[str, Any]:
    of, ask = plan.description, plan.request
    base = replace(ask, context=max(ask.context, least))
    tps = sorted({*DEVICES, ask.tp})
    kept_at = replace(base, batch=1)
    return {
        "name": of.name,
        "activations": [max(memory.activations(of, one).values()) for one in _at(base, batches)],
        "weights": {
            name: _by_devices(tps, replace(base, weights=name), lambda r: _held(plan, r, batches))
            for name in _weight_formats(of, ask)
        },
        "kept": {
            name: _by_devices(tps, replace(kept_at, cache_dtype=name), lambda r: _kept(plan, r))
            for name in dict.fromkeys((cache, *CACHES))
        },
        "not_counted": list(of.notes),
    }


def _weight_formats(of: Description, ask: Request) -> list[str]:
    """Formats that leave what is computed in the dtype that was asked for."""
    found = []
    for name in dict.fromkeys((ask.weights, *WEIGHT_FORMATS)):
        changed = replace(ask, weights=name)
        same = changed.activation_dtype(of) == ask.activation_dtype(of)
        if same and _allowed(lambda r: memory.items(of, r), replace(changed, tp=1, ep=1)):
            found.append(name)
    return found


def _by_devices(
    tps: Sequence[int], request: Request, make: Callable[[Request], Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """One entry for each number of devices that divides the model."""
    found = {}
    for tp in tps:
        entry = _allowed(make, replace(request, tp=tp))
        if entry is not None:
            found[str(tp)] = entry
    return found


def _allowed(make: Callable[[Request], Any], request: Request) -> Any:
    try:
        return make(request)
    except InputError:
        return None


def _held(plan: Plan, request: Request, batches: Sequence[int]) -> dict[str, Any]:
    of = plan.description
    items = [i for i in memory.items(of, request) if i.group == "weights"]
    found: dict[str, Any] = {"items": [[item.name, item.fixed] for item in items]}
    if plan.machine is not None:
        steps = [roofline.Work(of, one, plan.machine).step() for one in _at(request, batches)]
        found["seconds"] = [roofline.seconds(tuple(step)) for step in steps]
    return found


def _at(request: Request, batches: Sequence[int]) -> list[Request]:
    return [replace(request, batch=batch) for batch in batches]


def _kept(plan: Plan, request: Request) -> dict[str, Any]:
    of = plan.description
    found: dict[str, Any] = {
        "items": [
            {
                "name": item.name,
                "group": item.group,
                "per_sequence": item.per_sequence,
                "per_token": item.per_token,
                "most_tokens": item.most_tokens,
            }
            for item in memory.items(of, request)
            if item.group != "weights"
        ]
    }
    if plan.machine is not None:
        work = roofline.Work(of, request, plan.machine)
        found["lines"] = [
            _line(work, mixer, layers)
            for mixer, layers in of.mixers
            if mixer.kind == "state" or of.caches
        ]
    return found


def _line(work: roofline.Work, mixer: Mixer, layers: int) -> dict[str, Any]:
    """Seconds of one sequence in all layers of one kind; tokens alone change them."""
    machine = work.machine
    moved: list[tuple[float, int | None]]
    done: list[tuple[float, int | None]]
    if mixer.kind == "state":
        part, kind, band = work.state_step(mixer, layers), "kda_decode", machine.copy_bandwidth
        moved, done = [(part.nbytes, 1)], [(part.flops, 1)]
    else:
        # attention grows by one rate up to what a query reaches, and by another beyond
        most = max(n for n in (mixer.window, mixer.chosen, 1) if n is not None)
        near, far = work.attend(mixer, layers, 1), work.attend(mixer, layers, 2 * most)
        limited = mixer.window is not None or mixer.chosen is not None
        part, kind, band = near, "mla_decode", machine.read_bandwidth
        moved = _growth(near.nbytes, far.nbytes, most if limited else None)
        done = _growth(near.flops, far.flops, most if limited else None)
    share = machine.efficiency[kind]
    return {
        "name": part.name,
        "memory": [[value / band / share, most] for value, most in moved],
        "rate": [[value / work.rate / share, most] for value, most in done],
    }


def _growth(one: float, twice: float, most: int | None) -> list[tuple[float, int | None]]:
    """`a * min(tokens, most) + b * tokens` from its values at one token and at twice the limit."""
    if most is None:
        return [(one, None)]
    beyond = twice / most - one
    return [(one - beyond, most), (beyond, None)]

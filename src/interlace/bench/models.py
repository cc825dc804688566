"""`model`: decoding and prefill of whole models by depth, hybrids beside all-MLA forms and peers.

    family   mid, mid-mla             the same sizes, so they run in the same comparison
    depth    for each: all systems of the family, in turn, seven times

A peer's forms are tried once at each depth; its fastest is the one that is timed. Weights are
random: time does not depend on them.
"""

import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interlace.bench import peers
from interlace.bench.filled import Filled
from interlace.bench.timing import MIN_SECONDS, REPEATS, RUNS, paired
from interlace.checkpoints.writer import save
from interlace.config import HybridConfig, preset
from interlace.config.activations import activation_bytes
from interlace.config.sizes import cache_bytes, weight_bytes
from interlace.errors import InputError
from interlace.generation import memory
from interlace.models import HybridLM, build

__all__ = ["CHUNK", "Plan", "families", "measure"]

CHUNK = 512
"""Prompt tokens of one call of our model, as in generation."""

DTYPE = "bfloat16"
_MLA = "-mla"

# logits of a peer that was given other latents, or reads them otherwise, differ by about 1
_GAP = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to measure.

    Args:
        models: names of presets.
        depths: cached tokens of a decoding step.
        prompts: tokens of a prefill.
        against: peers, which run the hybrids among the models.
        peer_prompts: prompts that peers read too; they take their time.
        runs: runs of each comparison.
        llama_source: a folder of llama.cpp's sources, for that peer.
    """

    models: Sequence[str]
    depths: Sequence[int] = ()
    prompts: Sequence[int] = ()
    against: Sequence[str] = ()
    peer_prompts: Sequence[int] | None = None
    runs: int = RUNS
    llama_source: Path | None = None

    def comparisons(self) -> int:
        """How many there are, for a progress bar."""
        return len(families(self.models)) * (len(self.depths) + len(self.prompts))


def families(models: Sequence[str]) -> list[list[str]]:
    """Models of the same sizes together, in order of appearance: `[[mid, mid-mla], [kl2]]`."""
    found: dict[str, list[str]] = {}
    for name in models:
        found.setdefault(name.removesuffix(_MLA), []).append(name)
    return list(found.values())


def measure(
    plan: Plan,
    *,
    min_seconds: float = MIN_SECONDS,
    tick: Callable[[], object] | None = None,
) -> list[dict[str, Any]]:
    """Measure, and return one record per family and depth or prompt.

    Args:
        plan: what to measure.
        min_seconds: time that each system fills within a run.
        tick: called after each run; there are `plan.runs * plan.comparisons()`.

    Raises:
        InputError: nothing to measure, an unknown or missing peer, or one that computes otherwise.
        ConfigError: an unknown preset, or one that is not built yet.
        MemoryLimitError: the machine has too little memory.
    """
    if not plan.models or not (plan.depths or plan.prompts):
        raise InputError("there must be a model and a depth or a prompt, got none of one kind.")
    peers.require_peers(plan.against, plan.llama_source)
    for family in families(plan.models):
        _require_memory([preset(name) for name in family], plan)
    with torch.inference_mode():
        return [
            record
            for family in families(plan.models)
            for record in _measure_family(family, plan, min_seconds, tick)
        ]


def _require_memory(configs: list[HybridConfig], plan: Plan) -> None:
    deepest = max((0, *plan.depths))
    call = max((1, *(min(n, CHUNK) for n in plan.prompts)))
    after = max((deepest + 1, *plan.prompts))
    needed = {
        "weights": sum(weight_bytes(c, DTYPE) for c in configs),
        "caches": sum(cache_bytes(c, 1, after, DTYPE) for c in configs),
        "activations": max(activation_bytes(c, 1, call, after, DTYPE) for c in configs),
    }
    limit = memory.available()
    memory.require(needed, limit, "the measurement", "measure fewer models at once, or less deep")


def _measure_family(
    family: list[str], plan: Plan, min_seconds: float, tick: Callable[[], object] | None
) -> Iterator[dict[str, Any]]:
    models = {name: build(name, dtype=DTYPE).requires_grad_(False) for name in family}
    opened, skipped = _open_peers(models, plan)
    # a step is a token more: a tiny model's run is so many, although they take less than its time
    most = math.ceil(1000 * min_seconds + 1)
    reserve = (plan.runs + REPEATS) * most + 8
    try:
        for tokens in plan.depths:
            systems, notes = _decoding(models, opened, tokens, reserve)
            comparison = paired(
                systems,
                runs=plan.runs,
                what=f"decoding of {family[0]} at {tokens:,} tokens",
                min_seconds=min_seconds,
                most_calls=most,
                tick=tick,
            )
            yield _record("decode", family[0], tokens, notes | skipped, comparison)
            del systems
            gc.collect()
        for tokens in plan.prompts:
            with_peers = plan.peer_prompts is None or tokens in plan.peer_prompts
            systems, notes = _prefill(models, opened if with_peers else {}, tokens)
            comparison = paired(
                systems,
                runs=plan.runs,
                what=f"prefill of {family[0]} over {tokens:,} tokens",
                min_seconds=min_seconds,
                tick=tick,
            )
            yield _record("prefill", family[0], tokens, notes | skipped, comparison)
    finally:
        for peer in opened.values():
            peer.close()
        models.clear()
        gc.collect()


def _record(
    kind: str, family: str, tokens: int, notes: dict[str, Any], comparison: Any
) -> dict[str, Any]:
    return {
        "kind": kind,
        "family": family,
        "tokens": tokens,
        "notes": notes,
        **comparison.to_dict(),
    }


Opened = dict[tuple[str, str], peers.Peer]
Systems = tuple[dict[str, Callable[[], object]], dict[str, Any]]


def _open_peers(models: dict[str, HybridLM], plan: Plan) -> tuple[Opened, dict[str, Any]]:
    """The peers of every hybrid by (model, peer), and why some are not there."""
    opened: Opened = {}
    skipped: dict[str, Any] = {}
    for name, lm in models.items():
        wanted = plan.against if not name.endswith(_MLA) or len(models) == 1 else ()
        for peer in wanted:
            reason = peers.refusal(peer, lm.config)
            if reason is not None:
                skipped[f"{peer} {name}"] = reason
                continue
            with tempfile.TemporaryDirectory() as folder:
                save(lm, Path(folder) / name)
                opened[name, peer] = peers.open_peer(
                    peer, Path(folder) / name, torch.get_num_threads(), plan.llama_source
                )
    return opened, skipped


def _decoding(models: dict[str, HybridLM], opened: Opened, tokens: int, reserve: int) -> Systems:
    systems: dict[str, Callable[[], object]] = {}
    notes: dict[str, Any] = {}
    for name, lm in models.items():
        ours = Filled(lm, tokens, reserve)
        systems[name] = ours.step
        # once, whatever the number of peers: it is a step, and the next one has another past
        logits = ours.step(9)
        for (model, peer_name), peer in opened.items():
            if model != name:
                continue
            peer.fill(tokens, reserve)
            gap = _gap(logits, peer.step(9))
            if not gap <= _GAP:
                raise InputError(
                    f"{peer_name} must give our logits for {name} over the same {tokens:,} "
                    f"latents, they differ by {gap:.2g} of the largest; version {peer.version} "
                    "may keep its cache in another form."
                )
            label = f"{peer_name} {name}"
            notes[label] = {"version": peer.version, "logit_gap": gap}
            _add_fastest(systems, notes[label], label, peer.steps(), peer.skipped)
    return systems, notes


def _prefill(models: dict[str, HybridLM], opened: Opened, tokens: int) -> Systems:
    systems: dict[str, Callable[[], object]] = {}
    notes: dict[str, Any] = {}
    for name, lm in models.items():
        systems[name] = _reading(lm, tokens)
        for (model, peer_name), peer in opened.items():
            if model == name:
                label = f"{peer_name} {name}"
                notes[label] = {"version": peer.version}
                _add_fastest(systems, notes[label], label, peer.prompts(tokens), peer.skipped)
    return systems, notes


def _reading(lm: HybridLM, tokens: int) -> Callable[[], object]:
    """A prompt from an empty cache, in chunks, logits of the last token only."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, lm.config.vocab_size, (1, tokens), generator=generator)

    def read() -> None:
        cache = lm.new_cache(1, capacity=tokens)
        for part in ids.split(CHUNK, 1):
            lm(part, cache=cache, last_only=True)

    return read


def _gap(ours: Tensor, theirs: Tensor) -> float:
    """Max |a - b| / max(1, max |b|) of two sets of logits `[vocab]`."""
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1.0))


def _add_fastest(
    systems: dict[str, Callable[[], object]],
    note: dict[str, Any],
    label: str,
    forms: Mapping[str, Callable[[], object]],
    skipped: Mapping[str, str],
) -> None:
    """Try each form and keep the fastest as a system of its own."""
    seconds = {}
    for form, call in forms.items():
        seconds[form] = _seconds(call)
        if seconds[form] < 1:  # the first call may have paid for what a system sets up once
            seconds[form] = _seconds(call)
    note["tried_seconds"], note["skipped"] = seconds, dict(skipped)
    if seconds:
        form = min(seconds, key=lambda name: seconds[name])
        note["form"] = form
        systems[label] = forms[form]


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start

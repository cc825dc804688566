"""`limits`: what this machine gives, and which share of it each kind of layer gets.

    rates        five loops (see `loops`)
    efficiency   one operator per kind (of a KDA layer all that is no projection), at one depth and
                 width that no benchmark model has:
                 (operations / rate or bytes / bandwidth, whichever is more)
                 / (its time - the time of the same call at a size of next to nothing)
    fixed        seconds of a whole layer at a size of next to nothing: what a call costs before any
                 number is computed

A model's time is then a sum of bounds over efficiencies plus fixed times, with nothing fitted to
a run of any model. Written as JSON to the user's cache folder, where `planner` finds it.
"""

import json
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interlace.bench import machine
from interlace.bench.cold import COLD_BYTES, Cold
from interlace.bench.loops import LIMITS, MATRIX, Loops
from interlace.bench.timing import MIN_SECONDS, RUNS, Comparison, paired
from interlace.bench.work import (
    Work,
    delta_chunk_work,
    delta_step_work,
    latent_decode_work,
    latent_prefill_work,
    linear_work,
)
from interlace.caches import HybridCache
from interlace.config import HybridConfig
from interlace.config.activations import DELTA_CHUNK
from interlace.config.sizes import CACHE_STEP
from interlace.layers import Block
from interlace.ops.attention import latent_attention
from interlace.ops.conv import short_conv
from interlace.ops.delta_rule import kda, kda_gate
from interlace.ops.linear import linear
from interlace.ops.norm import gated_rms_norm
from interlace.planner.hardware import FORMAT, limits_path

__all__ = ["Probe", "measure", "turns", "write"]

WIDTH = 4
"""Taps of the short convolution."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """The sizes at which the operators are timed; no model of the presets has them."""

    hidden: int = 1792
    heads: int = 24
    nope: int = 128
    shared: int = 64
    value: int = 128
    rank: int = 512
    key: int = 128
    depth: int = 20_480
    prefill: int = 384
    past: int = 1_152

    def shrunk(self) -> "Probe":
        """Next to nothing, the same calls."""
        return Probe(
            hidden=16,
            heads=1,
            nope=8,
            shared=4,
            value=8,
            rank=8,
            key=8,
            depth=16,
            prefill=self.prefill,
            past=8,
        )


PROBE = Probe()


def measure(
    *,
    runs: int = RUNS,
    probe: Probe = PROBE,
    cold_bytes: int = COLD_BYTES,
    matrix: int = MATRIX,
    min_seconds: float = MIN_SECONDS,
    tick: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Measure everything, with every run kept under "runs".

    Args:
        runs: runs of each comparison.
        probe: sizes of the operators.
        cold_bytes: what passes through memory before an operand is used again.
        matrix: rows and columns of the matrix products.
        min_seconds: time that each system fills within a run.
        tick: called after each run; there are `turns(runs)` of them.
    """
    cold = Cold(cold_bytes)
    loops = Loops(cold, matrix)
    options: dict[str, Any] = {"runs": runs, "min_seconds": min_seconds, "tick": tick}
    with torch.inference_mode():
        rates = paired({name: loops[name] for name in LIMITS}, what="the loops", **options)
        kept = {"rates": rates.to_dict()}
        efficiency = {}
        for name, make in _OPERATORS.items():
            large, small = make(probe, cold), make(probe.shrunk(), cold)
            limit = large[0].limit(_rates(rates, loops))
            systems = {"loop": loops[limit], "operator": large[1], "next to nothing": small[1]}
            comparison = paired(systems, what=name, **options)
            kept[name] = {"limit": limit, **comparison.to_dict()}
            efficiency[name] = _share(comparison, large[0], loops.amount[limit], limit)
        systems = _layers(probe)
        fixed = paired(systems, what="the fixed times", **options)
    about = machine.describe()
    kept["fixed"] = fixed.to_dict()
    found = _rates(rates, loops)
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": "{cpu}, {cores} cores, {torch_threads} threads".format(**about),
        "about": about,
        "bf16_flops": found["bf16"],
        "fp32_flops": found["fp32"],
        "read_bandwidth": found["read"],
        "copy_bandwidth": found["copy"],
        "matmul_flops": found["matmul"],
        "loops": "native" if loops.native else "torch",
        "efficiency": efficiency,
        "seconds_per_layer_call": {name: fixed.median(name) for name in systems},
        "others_share": max(rates.busiest, fixed.busiest),
        "runs": kept,
    }


def turns(runs: int = RUNS) -> int:
    """Calls of `tick` that `measure` makes."""
    return runs * (len(_OPERATORS) + 2)


def write(limits: dict[str, Any], path: Path | None = None) -> Path:
    """Write the limits, whole or not at all, and return where."""
    path = path or limits_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(json.dumps(limits, indent=2) + "\n")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _rates(rates: Comparison, loops: Loops) -> dict[str, float]:
    return {name: loops.amount[name] / rates.median(name) for name in LIMITS}


def _share(comparison: Comparison, work: Work, amount: int, limit: str) -> float:
    """Median over the runs of bound over time, the bound by the loop of the same run."""
    shares = []
    for run in comparison.runs:
        bound = work.amount(limit) * run.seconds["loop"] / amount
        spent = run.seconds["operator"] - run.seconds["next to nothing"]
        shares.append(bound / max(spent, bound))
    return statistics.median(shares)


# -- the operators, each as (what it must do, one call)

Operator = tuple[Work, Callable[[], object]]


def _latents(probe: Probe, cold: Cold, queries: int, memory: int) -> Callable[[], Tensor]:
    q = torch.randn(1, queries, probe.heads, probe.nope + probe.shared)
    # keys made by the buffer's numbers are sqrt(R) too long, and scores far below their maximum
    # have exponentials that a CPU computes ten times as slowly: those of no model
    q = q.mul_(probe.rank**-0.5).bfloat16()

    def call() -> Tensor:
        latent = cold.take(1, memory, probe.rank + probe.shared)
        w_uk = cold.take(probe.heads, probe.nope, probe.rank)
        w_uv = cold.take(probe.heads, probe.value, probe.rank)
        return latent_attention(q, latent, w_uk, w_uv)

    return call


def _mla_decode(probe: Probe, cold: Cold) -> Operator:
    work = latent_decode_work(probe.heads, probe.rank, probe.shared, probe.depth)
    return work, _latents(probe, cold, 1, probe.depth)


def _mla_prefill(probe: Probe, cold: Cold) -> Operator:
    memory = probe.past + probe.prefill
    width = probe.nope + probe.shared + probe.value
    pairs = latent_prefill_work(probe.heads, width, probe.prefill, probe.past)
    # keys and values of the past are made again; the planner counts it so
    again = 2 * memory * probe.rank * probe.heads * (probe.nope + probe.value)
    return Work(operations=pairs.operations + again), _latents(probe, cold, probe.prefill, memory)


def _delta(probe: Probe, cold: Cold, tokens: int) -> Callable[[], object]:
    """The recurrence and everything around it that is no projection."""
    heads, key = probe.heads, probe.key
    shape, channels = (1, tokens, heads, key), heads * key
    x = torch.randn(1, tokens, channels).bfloat16()
    taps = torch.randn(channels, WIDTH).bfloat16()
    z, a_log, bias = torch.randn(shape).bfloat16(), torch.zeros(heads), torch.zeros(heads, key)
    beta, weight = torch.rand(shape[:-1]), torch.ones(key).bfloat16()
    # written over, and what float32 leaves is no bf16 for others: 256 states of their own
    states = Cold(min(cold.nbytes, 1024 * heads * key * key), seed=1)

    def call() -> object:
        state = states.take(1, heads, key, key, dtype=torch.float32)
        window = cold.take(1, WIDTH - 1, channels)
        q, k, v = (short_conv(x, taps, state=window)[0].view(shape) for _ in range(3))
        g = kda_gate(z, a_log, bias)
        o, after = kda(q, k, v, g, beta, state=state, unit_eps=1e-6, overwrite=True)
        return gated_rms_norm(o, z, weight, 1e-5), after

    return call


def _kda_decode(probe: Probe, cold: Cold) -> Operator:
    work = delta_step_work(probe.heads, probe.key, probe.key)
    return work, _delta(probe, cold, 1)


def _kda_prefill(probe: Probe, cold: Cold) -> Operator:
    work = delta_chunk_work(probe.heads, probe.key, probe.prefill, chunk=DELTA_CHUNK)
    return work, _delta(probe, cold, probe.prefill)


def _linear(probe: Probe, cold: Cold, rows: int) -> Operator:
    x = torch.randn(rows, probe.hidden).bfloat16()
    out = 2 * probe.hidden

    def call() -> Tensor:
        return linear(x, cold.take(out, probe.hidden))

    return linear_work(rows, probe.hidden, out), call


_OPERATORS: dict[str, Callable[[Probe, Cold], Operator]] = {
    "mla_decode": _mla_decode,
    "kda_decode": _kda_decode,
    "linear_decode": lambda probe, cold: _linear(probe, cold, 1),
    "mla_prefill": _mla_prefill,
    "kda_prefill": _kda_prefill,
    "linear_prefill": lambda probe, cold: _linear(probe, cold, probe.prefill),
}


def _layers(probe: Probe) -> dict[str, Callable[[], object]]:
    """One decoding step of each kind of layer, with norm and residual, at next to nothing."""
    tiny = probe.shrunk()
    config = HybridConfig(
        vocab_size=8,
        hidden_size=tiny.hidden,
        num_hidden_layers=2,
        kda_layers=(1,),
        full_attn_layers=(2,),
        num_attention_heads=tiny.heads,
        qk_nope_head_dim=tiny.nope,
        qk_rope_head_dim=tiny.shared,
        v_head_dim=tiny.value,
        kv_lora_rank=tiny.rank,
        kda_num_heads=tiny.heads,
        kda_head_dim=tiny.key,
        intermediate_size=tiny.hidden,
    )
    blocks = [Block(config, layer_idx).bfloat16() for layer_idx in range(2)]
    x = torch.randn(1, 1, tiny.hidden).bfloat16()

    def mixer(layer_idx: int) -> Callable[[], object]:
        block = blocks[layer_idx]
        calls, cache = 0, HybridCache(config, 1, torch.bfloat16, "cpu").layers

        def call() -> Tensor:
            nonlocal calls, cache
            calls += 1
            if calls % CACHE_STEP == 0:  # a cache that grew would add what is no fixed cost
                cache = HybridCache(config, 1, torch.bfloat16, "cpu").layers
            return x + block.self_attn(block.input_layernorm(x), cache=cache[layer_idx])

        return call

    def mlp() -> object:
        block = blocks[0]
        return x + block.mlp(block.post_attention_layernorm(x))

    return {"kda": mixer(0), "mla": mixer(1), "mlp": mlp}

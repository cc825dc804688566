"""Three shares of a roofline from two published ratios, and what they say about two others.

The Kimi Linear report gives, for its 48B model against the same model with MLA in every layer and
at batch 1, how much longer the latter takes: per decoded token 1.8 times at 512K tokens and 2.2 at
1M, for prefill 2.3 and 2.9. The figures at 512K fix two shares; those at 1M are then predictions.

    decode    (rest + attention of 27 layers) / (rest + attention of 7) = 1.8   ->  decode_rest
    prefill   the same with the operations of prefill                   = 2.3   ->  prefill_rest

A ratio knows no absolute speed, so the third share, of attention itself, is an assumption. The
report names no accelerator: results are for two.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from interlace.config import preset
from interlace.planner.compare import all_mla
from interlace.planner.description import Description
from interlace.planner.families import describe
from interlace.planner.hardware import Hardware, hardware
from interlace.planner.plan import Plan, plan_for

__all__ = ["CHUNK", "PUBLISHED", "Fit", "fit", "throughput_ratio"]

PUBLISHED = {"decode": {2**19: 1.8, 2**20: 2.2}, "prefill": {2**19: 2.3, 2**20: 2.9}}
"""Times of all-MLA over those of Kimi Linear, batch 1, by tokens."""

ATTENTION = 0.75
"""Share of its limit that attention is taken to reach."""

CHUNK = 8192
"""Tokens of a prefill call, as servers have it."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Shares for one accelerator, and what they give.

    Args:
        machine: the accelerator with these shares.
        decode_rest: share that everything but attention reaches while decoding.
        prefill_rest: the same in prefill.
        ratios: time of all-MLA over that of the hybrid, by phase and tokens.
    """

    machine: Hardware
    decode_rest: float
    prefill_rest: float
    ratios: dict[str, dict[int, float]]


def fit(name: str) -> Fit:
    """The shares for the accelerator called `name`.

    Raises:
        InputError: no such machine.
        ValueError: no share in (0, 1] gives the published ratio.
    """
    machine, (hybrid, full) = hardware(name), _models()

    def ratio(phase: str, tokens: int, decode_rest: float, prefill_rest: float) -> float:
        with_shares = machine.with_efficiency(ATTENTION, decode_rest, prefill_rest)
        times = [_time(_plan(model, tokens, with_shares), phase) for model in (full, hybrid)]
        return times[0] / times[1]

    tokens = 2**19
    decode_rest = _solve(lambda share: ratio("decode", tokens, share, 1.0), 1.8)
    prefill_rest = _solve(lambda share: ratio("prefill", tokens, decode_rest, share), 2.3)
    found = {
        phase: {n: ratio(phase, n, decode_rest, prefill_rest) for n in figures}
        for phase, figures in PUBLISHED.items()
    }
    shared = machine.with_efficiency(ATTENTION, decode_rest, prefill_rest)
    return Fit(shared, decode_rest, prefill_rest, found)


def throughput_ratio(machine: Hardware, devices: int, memory: int) -> dict[str, float]:
    """The report's 6.3 at 1M tokens (11.48 ms against 1.84): time per token, each at its own batch.

    Both models take as many sequences as fit. Several devices share the experts and have sequences
    of their own, as a shared layer would keep every latent on every device.

    Args:
        machine: with its shares.
        devices: that share the experts.
        memory: bytes of each.

    Returns:
        Batch per device and milliseconds per token and device of both, and their ratio.
    """
    found: dict[str, float] = {}
    for label, model in zip(("hybrid", "all_mla"), _models(), strict=True):
        one = _plan(model, 2**20, machine, ep=devices)
        batch = one.largest_batch(memory) or 1
        many = one.with_request(batch=batch)
        found[f"{label}_batch"] = batch
        found[f"{label}_ms"] = 1e3 * devices / many.tokens_per_second
    found["ratio"] = found["all_mla_ms"] / found["hybrid_ms"]
    return found


def _models() -> tuple[Description, Description]:
    hybrid = describe(preset("kimi-linear-48b"), "kimi-linear-48b")
    return hybrid, all_mla(hybrid)


def _plan(model: Description, tokens: int, machine: Hardware, ep: int = 1) -> Plan:
    made = plan_for(model, context=tokens, ep=ep, prefill_chunk=CHUNK)
    return replace(made, machine=machine)


def _time(made: Plan, phase: str) -> float:
    return made.seconds_per_token if phase == "decode" else made.prefill_seconds


def _solve(ratio: Callable[[float], float], wanted: float) -> float:
    """The share at which a ratio that grows with it has the wanted value."""
    low, high = 1e-4, 1.0
    if not ratio(low) <= wanted <= ratio(high):
        raise ValueError(f"no share in (0, 1] gives a ratio of {wanted}")
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(middle) < wanted else (low, middle)
    return (low + high) / 2

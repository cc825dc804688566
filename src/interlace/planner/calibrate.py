"""Three shares of a roofline from two published ratios, and what they say about two others.

The Kimi Linear report gives, for its 48B model against the same model with MLA in every layer and
at batch 1, how much longer the latter takes: per decoded token 1.8 times at 512K tokens and 2.2 at
1M, for prefill 2.3 and 2.9. The figures at 512K fix two shares; those at 1M are then predictions.

    decode    (rest + attention of 27 layers) / (rest + attention of 7) = 1.8   ->  decode_rest
    prefill   the same with the operations of prefill                   = 2.3   ->  prefill_rest

A ratio knows no absolute speed, so the third share, of attention itself, is an assumption. The
report names no accelerator: results are for two.
"""

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
    machine = hardware(name)
    plans = {
        tokens: [_plan(model, tokens, machine) for model in (full, hybrid)]
        for hybrid, full in (_models(),)
        for tokens in PUBLISHED["decode"]
    }

    def times(phase: str, tokens: int, decode_rest: float, prefill_rest: float) -> list[float]:
        shared = machine.with_efficiency(ATTENTION, decode_rest, prefill_rest)
        return [_time(replace(one, machine=shared), phase) for one in plans[tokens]]

    tokens = 2**19
    decode_rest, prefill_rest = (
        _solve(
            times(phase, tokens, 1.0, 1.0), times(phase, tokens, 0.5, 0.5), PUBLISHED[phase][tokens]
        )
        for phase in ("decode", "prefill")
    )
    ratios: dict[str, dict[int, float]] = {}
    for phase, figures in PUBLISHED.items():
        ratios[phase] = {}
        for n in figures:
            slow, fast = times(phase, n, decode_rest, prefill_rest)
            ratios[phase][n] = slow / fast
    shared = machine.with_efficiency(ATTENTION, decode_rest, prefill_rest)
    return Fit(shared, decode_rest, prefill_rest, ratios)


def throughput_ratio(machine: Hardware, devices: int, memory: int) -> dict[str, float | int]:
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
    found: dict[str, float | int] = {}
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


def _solve(at_one: list[float], at_half: list[float], wanted: float) -> float:
    """The share at which the ratio of two times has the wanted value.

    A time is `fixed + rest / share`, so two values of it tell both terms.

    Args:
        at_one: times of all-MLA and of the hybrid at a share of 1.
        at_half: the same at a share of one half.
        wanted: ratio of the two.

    Raises:
        ValueError: no share in (0, 1] gives it.
    """
    rest = [half - one for half, one in zip(at_half, at_one, strict=True)]
    fixed = [one - more for one, more in zip(at_one, rest, strict=True)]
    share = (wanted * rest[1] - rest[0]) / (fixed[0] - wanted * fixed[1])
    if not 0 < share <= 1:
        raise ValueError(f"no share in (0, 1] gives a ratio of {wanted}")
    return share

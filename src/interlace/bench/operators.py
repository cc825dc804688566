"""`ops`: every operator at the sizes of a preset: time, share of its limit, error against float64.

Each is timed beside the loop that bounds it, in the same runs; its share is the median over the
runs of the bound over its time.
"""

from collections.abc import Callable
from typing import Any

import torch

from interlace.bench.cases import Case, Make, all_cases
from interlace.bench.cold import COLD_BYTES, Cold
from interlace.bench.loops import LIMITS, MATRIX, Loops
from interlace.bench.timing import MIN_SECONDS, RUNS, paired
from interlace.config import HybridConfig, preset
from interlace.config.sizes import expert_width

__all__ = ["DEPTHS", "PROMPT", "SIZES", "measure", "names"]

SIZES = ("kimi-k3", "kimi-linear-48b", "default")
"""Presets whose sizes the operators are timed at: K3, Kimi Linear, and a small one."""

DEPTHS = (4_096, 131_072)
"""Cached tokens of a decoding step."""

PROMPT = 2_048
"""Tokens of a prefill."""


def measure(
    size: str,
    *,
    depths: tuple[int, ...] = DEPTHS,
    prompt: int = PROMPT,
    only: str = "",
    runs: int = RUNS,
    cold_bytes: int = COLD_BYTES,
    matrix: int = MATRIX,
    min_seconds: float = MIN_SECONDS,
    tick: Callable[[], object] | None = None,
) -> list[dict[str, Any]]:
    """Time the operators at the sizes of a preset.

    Args:
        size: name of a preset.
        depths: cached tokens of a decoding step.
        prompt: tokens of a prefill.
        only: measure operators whose name contains this.
        runs: runs of each.
        cold_bytes: what passes through memory before an operand is used again.
        matrix: rows and columns of the matrix products.
        min_seconds: time that each fills within a run.
        tick: called after each run; there are `runs` for each of `names(...)`.

    Returns:
        One record per operator: what it is, median seconds, its limit and the share of it, its
        error, and every run.
    """
    config = preset(size)
    cold = Cold(max(cold_bytes, _largest_operand(config, depths)))
    loops = Loops(cold, matrix)
    out = []
    with torch.inference_mode():
        rough = paired({name: loops[name] for name in LIMITS}, runs=1, min_seconds=0.0)
        rates = {name: loops.amount[name] / rough.median(name) for name in LIMITS}
        for name, make in _chosen(config, depths, prompt, only):
            case = make(cold)
            limit = case.work.limit(rates)
            comparison = paired(
                {"loop": loops[limit], "operator": case.run},
                runs=runs,
                what=f"{name} at {size}",
                min_seconds=min_seconds,
                tick=tick,
            )
            out.append(
                {
                    "operator": name,
                    "size": size,
                    "detail": case.detail,
                    "error": case.error(),
                    **_judge(case, limit, loops.amount[limit], comparison),
                }
            )
    return out


def names(size: str, depths: tuple[int, ...] = DEPTHS, only: str = "") -> list[str]:
    """What `measure` would time, in its order."""
    return [name for name, _ in _chosen(preset(size), depths, PROMPT, only)]


def _judge(case: Case, limit: str, turn: int, comparison: Any) -> dict[str, Any]:
    amount, seconds = case.work.amount(limit), comparison.median("operator")
    return {
        "seconds": seconds,
        "limit": limit,
        "amount": amount,
        "rate": amount / seconds,
        "limit_rate": turn / comparison.median("loop"),
        "share": comparison.ratio("loop", "operator") * amount / turn,
        **comparison.to_dict(),
    }


def _chosen(
    config: HybridConfig, depths: tuple[int, ...], prompt: int, only: str
) -> list[tuple[str, Make]]:
    return [(name, make) for name, make in all_cases(config, depths, prompt) if only in name]


def _largest_operand(config: HybridConfig, depths: tuple[int, ...]) -> int:
    """Bytes of the largest thing that a case takes from the buffer."""
    chosen = config.num_experts_per_token or 0
    experts = 6 * chosen * expert_width(config) * (config.moe_intermediate_size or 0)
    latents = 2 * max((0, *depths)) * config.latent_dim
    linear = 2 * config.hidden_size * max(config.kda_dim, config.hidden_size)
    return max(latents, experts, linear)

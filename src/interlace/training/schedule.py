"""The learning rate over the steps of a run, as a factor of the full rate."""

import math

from interlace.training.recipe import ScheduleRecipe

__all__ = ["cooldown_start", "rate"]


def rate(schedule: ScheduleRecipe, step: int) -> float:
    """The factor for the 0-based `step`.

    It rises linearly over `warmup` steps (the first step already moves), then follows the shape:
    "cosine" falls to `floor` at the last step, "linear-cooldown" stays at one and falls linearly
    over the last share.
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    first = schedule.warmup if schedule.shape == "cosine" else cooldown_start(schedule)
    span = max(1, schedule.steps - 1 - first)
    done = min(1.0, max(0.0, (step - first) / span))
    if schedule.shape == "cosine":
        fall = 0.5 * (1 - math.cos(math.pi * done))
    else:
        fall = done
    return 1 - (1 - schedule.floor) * fall


def cooldown_start(schedule: ScheduleRecipe) -> int:
    """The first falling step of "linear-cooldown"; before it `steps` may still be changed."""
    return max(schedule.warmup, round(schedule.steps * (1 - schedule.cooldown)))

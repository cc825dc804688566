"""Paired, interleaved runs: every system once per run, so that a drift of the machine meets all.

    run 1   a a a  b b  c        each for as many calls as give a readable time
    run 2   c  b b  a a a        the other way round
    ...                          seven in all; every one is kept

What is compared are ratios within a run; the median of the seven is reported. A run during which
others took a large share of the machine is repeated a few times, then kept; `busy` says that.
"""

import logging
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from interlace.bench.machine import OthersShare
from interlace.errors import InputError

__all__ = ["BUSY", "RUNS", "Comparison", "Run", "busy", "paired"]

RUNS = 7
BUSY = 0.06
"""Share of the machine's CPU time above which a run is repeated."""

REPEATS = 3
"""Busy runs of one comparison that are repeated at most."""

MIN_SECONDS = 0.1
"""A system is called as often as fills this time in one run: /proc/stat counts in hundredths."""

_MOST_CALLS = 2000

log = logging.getLogger("interlace")


@dataclass(frozen=True, slots=True)
class Run:
    """One run: seconds per call of each system, and the share of the CPU that others took."""

    seconds: dict[str, float]
    others_share: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"seconds": self.seconds, "others_share": round(self.others_share, 4)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came out: all kept runs, and those that were repeated because the machine was busy."""

    runs: list[Run]
    repeated: list[Run] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)

    def median(self, name: str) -> float:
        """Median seconds per call."""
        return statistics.median(run.seconds[name] for run in self.runs)

    def ratio(self, name: str, base: str) -> float:
        """Median over the runs of how many times as long `name` took as `base` in the same run."""
        return statistics.median(run.seconds[name] / run.seconds[base] for run in self.runs)

    @property
    def busiest(self) -> float:
        """The largest share that others took during a kept run."""
        return max(run.others_share for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: medians, all kept runs, repeated runs apart."""
        return {
            "median_seconds": {name: self.median(name) for name in self.runs[0].seconds},
            "runs": [run.to_dict() for run in self.runs],
            "repeated_runs": [run.to_dict() for run in self.repeated],
            "calls_per_run": self.calls,
        }


def paired(
    systems: Mapping[str, Callable[[], object]],
    *,
    runs: int = RUNS,
    what: str = "",
    min_seconds: float = MIN_SECONDS,
    most_calls: int = _MOST_CALLS,
    tick: Callable[[], object] | None = None,
    share: Callable[[], OthersShare] = OthersShare,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time all systems in turn, `runs` times.

    Each is called before anything counts: once to warm it, once more (unless that took a second
    already) to see how many calls a run needs.

    Args:
        systems: one call of each, by name.
        runs: runs to keep.
        what: subject of the log line about a busy machine.
        min_seconds: time that a system fills within a run, unless it needs too many calls for that.
        most_calls: calls of one system within a run at most.
        tick: called after each run, for a progress bar.
        share: measures what others took.
        clock: seconds.

    Raises:
        InputError: no system, or fewer than one run.
    """
    if not systems or runs < 1:
        raise InputError(f"a comparison needs a system and a run, got {len(systems)} and {runs}.")
    calls = {n: min(most_calls, _calls(c, min_seconds, clock)) for n, c in systems.items()}
    order = list(systems)
    kept: list[Run] = []
    repeated: list[Run] = []
    while len(kept) < runs:
        with share() as others:
            seconds = {name: _timed(systems[name], calls[name], clock) for name in order}
        order.reverse()
        run = Run({name: seconds[name] for name in systems}, others.share)
        if run.others_share > BUSY and len(repeated) < REPEATS:
            repeated.append(run)
            continue
        kept.append(run)
        if tick is not None:
            tick()
    out = Comparison(kept, repeated, calls)
    if out.busiest > BUSY:
        log.info(
            "others took up to %.0f%% of the CPU during %s",
            100 * out.busiest,
            what or "a comparison",
        )
    return out


def _timed(call: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def _calls(call: Callable[[], object], min_seconds: float, clock: Callable[[], float]) -> int:
    seconds = _timed(call, 1, clock)
    if seconds < 1:
        seconds = _timed(call, 1, clock)
    return max(1, math.ceil(min_seconds / max(seconds, 1e-9)))


def busy(runs: Iterable[Mapping[str, Any]]) -> str | None:
    """A warning where others took much of the machine during these runs, as in JSON, or None."""
    shares = [run["others_share"] for run in runs]
    high = [share for share in shares if share > BUSY]
    if not high:
        return None
    return (
        f"others took more than {BUSY:.0%} of the CPU in {len(high)} of {len(shares)} runs, "
        f"{max(high):.0%} at most: repeat this on a quiet machine"
    )

"""Sizes at which a measurement takes no time."""

from typing import Any

from interlace.bench.limits import Probe

TINY: dict[str, Any] = {"runs": 2, "cold_bytes": 1 << 20, "matrix": 16, "min_seconds": 0.0}
PROBE = Probe(
    hidden=24,
    heads=3,
    nope=6,
    shared=4,
    value=10,
    rank=14,
    key=12,
    depth=70,
    prefill=50,
    past=30,
)

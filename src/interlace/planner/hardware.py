"""Machines: what they can do at most, and which share of it each layer kind reaches.

Known machines stand in `hardware.toml` with their sources. The machine at hand is `measured`: a
file that `interlace bench limits` writes, at `limits_path()`. Its keys, all of them required:

    format                  2
    date                    when it was measured, ISO 8601
    machine                 its name, for a reader
    bf16_flops              operations per second of bf16 products in registers, float32 sums
    fp32_flops              of float32 multiply-adds in registers
    matmul_flops            of a square matrix product in bf16
    loops                   "native", or "torch" where matrix products stand for the first two
    read_bandwidth          bytes per second, reading
    copy_bandwidth          bytes per second, reading and writing in place, both counted
    efficiency              share of its limit, in (0, 1], of each layer kind:
      mla_decode, kda_decode, linear_decode, mla_prefill, kda_prefill, linear_prefill
    seconds_per_layer_call  time that a call takes whatever its size: mla, kda, mlp

`linear` is every projection and feed-forward; `kda` the recurrence and its convolutions; `mla` what
attention does with the cache. Shares are of the roofline: of bytes over bandwidth or of operations
over rate, whichever takes longer.
"""

import json
import math
import os
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from interlace.errors import InputError

__all__ = [
    "EFFICIENCIES",
    "LAYER_CALLS",
    "Hardware",
    "hardware",
    "known",
    "limits_path",
    "measured",
]

EFFICIENCIES = (
    "mla_decode",
    "kda_decode",
    "linear_decode",
    "mla_prefill",
    "kda_prefill",
    "linear_prefill",
)
"""Kinds of work whose share of the limit is known."""

LAYER_CALLS = ("mla", "kda", "mlp")
"""Kinds of layer calls that cost a fixed time."""

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device.

    Args:
        name: as asked for.
        title: for a reader.
        bf16_flops: operations per second of a bf16 matrix product.
        fp32_flops: the same in float32.
        read_bandwidth: bytes per second.
        copy_bandwidth: bytes per second, reading and writing in place, both counted.
        efficiency: share of the limit by kind of work (`EFFICIENCIES`).
        seconds_per_layer_call: fixed time by kind of layer (`LAYER_CALLS`).
        memory: bytes, or None where it is not said.
        source: where the numbers come from.
    """

    name: str
    title: str
    bf16_flops: float
    fp32_flops: float
    read_bandwidth: float
    copy_bandwidth: float
    efficiency: dict[str, float]
    seconds_per_layer_call: dict[str, float]
    memory: int | None
    source: str

    def with_efficiency(self, attention: float, rest: float, prefill: float) -> "Hardware":
        """The same device with three shares: attention, the rest of decoding, of prefill."""
        return replace(self, efficiency=_spread(attention, rest, prefill))


def hardware(name: str) -> Hardware:
    """The device called `name`; `measured` is the machine at hand.

    Raises:
        InputError: no such device, or `measured` without a usable file.
    """
    if name == "measured":
        return measured()
    machines = known()
    if name not in machines:
        raise InputError(
            f"hardware must be one of {', '.join(machines)} or measured, got {name!r}."
        )
    return machines[name]


@cache
def known() -> dict[str, Hardware]:
    """The devices of `hardware.toml` by name."""
    table = tomllib.loads(Path(__file__).with_name("hardware.toml").read_text())
    shares = table.pop("efficiency")
    return {
        name: Hardware(
            name=name,
            title=row["title"],
            bf16_flops=row["bf16_flops"],
            fp32_flops=row["fp32_flops"],
            read_bandwidth=row["bandwidth"],
            copy_bandwidth=row["bandwidth"],
            efficiency=_spread(*shares[row["efficiency"]].values()),
            seconds_per_layer_call=dict.fromkeys(LAYER_CALLS, 0.0),
            memory=int(row["memory"]),
            source=row["source"],
        )
        for name, row in table.items()
    }


def _spread(attention: float, rest: float, prefill: float) -> dict[str, float]:
    """Three shares over the six kinds of work: attention is one kernel in both phases."""
    return {
        "mla_decode": attention,
        "kda_decode": rest,
        "linear_decode": rest,
        "mla_prefill": attention,
        "kda_prefill": prefill,
        "linear_prefill": prefill,
    }


# -- the machine at hand


def limits_path() -> Path:
    """The file of this machine's limits: `$XDG_CACHE_HOME`, or `.cache` at home, + interlace."""
    cache_home = os.environ.get("XDG_CACHE_HOME") or os.path.join(  # noqa: PTH118
        os.environ.get("HOME", "."), ".cache"
    )
    return Path(cache_home) / "interlace" / "limits.json"


def measured(path: Path | None = None) -> Hardware:
    """The machine whose limits were measured.

    Args:
        path: the file; `limits_path()` when None.

    Raises:
        InputError: no file, not JSON, or a value that is missing or out of range.
    """
    path = path or limits_path()
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise InputError(
            f"hardware=measured needs {path}, which does not exist; run 'interlace bench limits' "
            "first, or name a machine."
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as JSON ({error}); run 'interlace bench limits' again."
        ) from None
    try:
        return _check(found)
    except (KeyError, TypeError, ValueError) as error:
        what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{path} is no file of limits of this version: {what}; run 'interlace bench limits' "
            "again."
        ) from None


def _check(found: Any) -> Hardware:
    if not isinstance(found, dict):
        raise TypeError("it must be an object")
    if found["format"] != FORMAT:
        raise ValueError(f"format must be {FORMAT}, got {found['format']!r}")
    bf16, fp32, read, copy = (
        _number(found[key], key)
        for key in ("bf16_flops", "fp32_flops", "read_bandwidth", "copy_bandwidth")
    )
    _number(found["matmul_flops"], "matmul_flops")
    if found["loops"] not in ("native", "torch"):
        raise ValueError(f"loops must be native or torch, got {found['loops']!r}")
    shares = {key: _number(found["efficiency"][key], key, most=1.0) for key in EFFICIENCIES}
    calls = {
        key: _number(found["seconds_per_layer_call"][key], key, zero=True) for key in LAYER_CALLS
    }
    title, date = str(found["machine"]), str(found["date"])
    source = f"interlace bench limits, {date}"
    return Hardware("measured", title, bf16, fp32, read, copy, shares, calls, None, source)


def _number(value: Any, key: str, most: float = math.inf, zero: bool = False) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value > most or value < 0 or (value == 0 and not zero):
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise ValueError(f"{key} must be a number above 0{upper}, got {value!r}")
    return float(value)

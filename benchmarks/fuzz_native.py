"""Random calls of every kernel of the native core, good and bad, with poison around every tensor.

    python benchmarks/fuzz_native.py --minutes 10         make fuzz: the same under the sanitizers

Sizes are drawn at the edges of tiles, and so are lengths, strides, the instruction set and the
number of threads. Every tensor lies in a larger buffer of NaN. A good call must run, agree with the
plain way in float64, leave its inputs as they were and write nothing around its outputs. A call
with one argument that does not fit must be refused with ValueError or TypeError, or, where it does
fit after all, leave the buffers as whole. `--seed` and `--first` repeat a call that failed.
"""

import argparse
import collections
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interlace.ops.attention import attention_absorbed
from interlace.ops.native import absence, core
from interlace.ops.norm import rms_norm

BF16, F32, I64 = torch.bfloat16, torch.float32, torch.int64
EDGES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 513)
BAD = 0.4  # share of calls in which one argument does not fit
WILD = 0.1  # and in which numbers are huge, infinite or NaN, and only memory is looked at
WORK = 4_000_000  # multiply-adds of one call, at most: it may run under a sanitizer, unvectorised
REPORT_SECONDS = 30


class Fault(Exception):
    """What is wrong with a kernel."""


class Guarded:
    """A tensor inside a buffer of poison that remembers what it held."""

    def __init__(self, values: Tensor, slack: list[int], rng: random.Random) -> None:
        strides, step = [], 1
        for size, more in zip(reversed(values.shape), reversed(slack), strict=True):
            strides.append(step)
            step *= size + more
        before, after = rng.randrange(1, 70), rng.randrange(1, 70)
        self.whole = torch.full((before + step + after,), poison(values.dtype), dtype=values.dtype)
        self.place = values.shape, strides[::-1], before
        self.tensor = self.whole.as_strided(*self.place)
        self.tensor.copy_(values)
        self.kept = self.whole.clone()

    def intact(self, written: bool) -> bool:
        """Whether nothing changed, or nothing but the tensor itself where it was to be written."""
        now = self.whole.clone()
        if written:
            now.as_strided(*self.place).copy_(self.kept.as_strided(*self.place))
        return torch.equal(now.view(torch.uint8), self.kept.view(torch.uint8))


def poison(dtype: torch.dtype) -> float | int:
    return float("nan") if dtype.is_floating_point else -(2**62)


@dataclass
class Call:
    """One call: arguments in order, which of them it fills, and the error of what it filled."""

    arguments: dict[str, Guarded | float | None]
    filled: tuple[str, ...]
    wrong: Callable[[], str | None]


def size(rng: random.Random, most: int, least: int = 0) -> int:
    drawn = rng.choice(EDGES) if rng.random() < 0.7 else rng.randrange(most + 1)
    return max(least, min(drawn, most))


def normal(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype, factor: float) -> Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    return (torch.randn(shape, generator=generator) * factor).to(dtype)


def turn_wild(rng: random.Random, *tensors: Tensor) -> bool:
    """Whether this call's numbers are wild; if so, makes them so."""
    if rng.random() >= WILD:
        return False
    for x in tensors:
        for value in (float("nan"), float("inf"), -float("inf"), 1e38, -1e38, 1e-40):
            if x.numel() and rng.random() < 0.4:
                x.view(-1)[rng.randrange(x.numel())] = value
    return True


def rows(rng: random.Random, values: Tensor) -> Guarded:
    """Any strides, the last axis dense."""
    slack = [rng.choice((0, 0, 1, 3, 8)) for _ in values.shape]
    return Guarded(values, slack, rng)


def dense(rng: random.Random, values: Tensor) -> Guarded:
    return Guarded(values, [0] * values.ndim, rng)


def attention(kernel: str, rng: random.Random) -> Call:
    many = kernel == "mla_prefill"
    while True:
        b, t, h = size(rng, 4), size(rng, 300 if many else 9), size(rng, 5 if many else 40)
        n, p, r, v = size(rng, 130), size(rng, 66), size(rng, 130, least=1), size(rng, 130)
        m = size(rng, 600)
        # both ways together: folding, scores, sums and rebuilding
        if b * h * (t * (n + v) * r + t * m * (2 * r + n + 2 * p + v) + m * r * (n + v)) <= WORK:
            break
    q, latent = normal(rng, (b, t, h, n + p), BF16, 1), normal(rng, (b, m, r + p), BF16, 1)
    uk, uv = normal(rng, (h, n, r), BF16, r**-0.5), normal(rng, (h, v, r), BF16, r**-0.5)
    wild = turn_wild(rng, q, latent, uk, uv)
    lengths = None
    if rng.random() < 0.7:
        lengths = torch.tensor([min(size(rng, 600), m) for _ in range(b)], dtype=I64)
        for row, end in enumerate(lengths.tolist()):
            latent[row, end:] = float("nan")
    scale = rng.choice((0.0, -0.1, 1.0, (n + p + 1) ** -0.5))
    arguments: dict[str, Guarded | float | None] = {
        "q": rows(rng, q),
        "latent": rows(rng, latent),
        "w_uk": rows(rng, uk),
        "w_uv": rows(rng, uv),
        "out": dense(rng, torch.full((b, t, h, v), float("nan"))),
        "lse": dense(rng, torch.full((b, t, h), float("nan"))) if rng.random() < 0.5 else None,
        "lengths": None if lengths is None else dense(rng, lengths),
        "scale": scale,
    }

    def wrong() -> str | None:
        if wild:
            return None
        want, want_lse = attention_absorbed(
            q.double(), latent, uk, uv, lengths=lengths, scale=scale, return_lse=True
        )
        # a score is off by 2^-8 of the sum of its terms' sizes, and a weight by e to that
        spread = abs(scale) * (n + p) ** 0.5 * 4
        bound = min(0.02 * (1 + spread), 2.0)
        problem = differs(filled(arguments, "out"), want, bound, "out")
        if arguments["lse"] is not None:
            problem = problem or differs(filled(arguments, "lse"), want_lse, bound, "lse")
        return problem

    return Call(arguments, ("out", "lse"), wrong)


def norm(rng: random.Random) -> Call:
    dtype, count, width = rng.choice((F32, BF16)), size(rng, 40), size(rng, 700)
    x, weight = normal(rng, (count, width), dtype, 3), normal(rng, (width,), dtype, 1)
    wild = turn_wild(rng, x, weight)
    arguments: dict[str, Guarded | float | None] = {
        "x": rows(rng, x),
        "weight": dense(rng, weight),
        "out": rows(rng, torch.full((count, width), float("nan"), dtype=dtype)),
        "eps": 1e-5,
    }

    def wrong() -> str | None:
        if wild:
            return None
        want = rms_norm(x.double(), weight.double(), 1e-5)
        bound = 1e-5 if dtype == F32 else 0.02
        return differs(filled(arguments, "out"), want, bound, "out")

    return Call(arguments, ("out",), wrong)


CASES: dict[str, Callable[[random.Random], Call]] = {
    "mla_decode": lambda rng: attention("mla_decode", rng),
    "mla_prefill": lambda rng: attention("mla_prefill", rng),
    "rms_norm": norm,
}
HARMLESS = {"level", "levels", "use_level"}


def filled(arguments: dict[str, Guarded | float | None], name: str) -> Tensor:
    out = arguments[name]
    assert isinstance(out, Guarded)
    return out.tensor


def differs(got: Tensor, want: Tensor, bound: float, name: str) -> str | None:
    """What is wrong with `got`, or None."""
    if got.numel() == 0:
        return None
    same = got.double() == want  # infinities too
    off = (got.double() - want).abs().masked_fill(same, 0.0)
    error = float(off.max()) / max(1.0, float(want.masked_fill(~want.isfinite(), 0.0).abs().max()))
    return None if error <= bound else f"{name} is off by {error:.3g}, allowed {bound:.3g}"


def spoil(rng: random.Random, call: Call) -> tuple[str, Any]:
    """The name of one argument and what to pass in its place."""
    name = rng.choice(list(call.arguments))
    given = call.arguments[name]
    nothing = [None, "text", [1.0], 3, object()]
    if not isinstance(given, Guarded):
        # a tensor that may be left out, or a number
        return name, rng.choice([*nothing, torch.ones(2, 3), torch.ones(5, dtype=I64)])
    x = given.tensor
    if name == "lengths" and x.numel() and rng.random() < 0.7:
        y = x.clone()
        y[rng.randrange(len(y))] = rng.choice((-1, -(2**63), 2**62, 601, 2**31))
        return name, y
    kind = rng.randrange(8)
    if kind == 0:
        return name, rng.choice(nothing)
    if kind == 1:
        others = [torch.float64, F32, BF16, torch.float16, I64, torch.int32, torch.int8, torch.bool]
        return name, x.to(rng.choice([d for d in others if d != x.dtype]))
    if kind == 2:
        return name, x.to("meta")
    if kind == 3 and x.is_floating_point():
        return name, x.clone().requires_grad_()
    if kind == 4 and x.ndim > 1:
        return name, x.transpose(-1, rng.randrange(x.ndim - 1))
    if kind == 5:
        return name, x[..., ::2] if rng.random() < 0.5 else x.unsqueeze(rng.randrange(x.ndim + 1))
    axis = rng.randrange(x.ndim)
    shape = list(x.shape)
    if kind == 6:
        shape[axis] = max(0, shape[axis] + rng.choice((-2, -1, 1, 2)))
        return name, torch.zeros(shape, dtype=x.dtype)
    # one row that is every row
    if shape[axis] == 0:
        return name, x
    return name, x.narrow(axis, 0, 1).expand(shape)


def run_one(name: str, rng: random.Random) -> str:
    """One call; "ran" or "refused".

    Raises:
        Fault: something is wrong.
    """
    native = core()
    native.use_level(rng.choice(native.levels()))
    torch.set_num_threads(rng.randrange(1, 4))
    call = CASES[name](rng)
    passed = {k: g.tensor if isinstance(g, Guarded) else g for k, g in call.arguments.items()}
    bad = rng.random() < BAD
    if bad:
        changed, value = spoil(rng, call)
        passed[changed] = value
    try:
        getattr(native, name)(**passed)
        outcome = "ran"
    except (ValueError, TypeError) as error:
        if not bad:
            raise Fault(f"a good call was refused: {error}") from error
        outcome = "refused"
    for key, given in call.arguments.items():
        if isinstance(given, Guarded):
            written = key in call.filled and outcome == "ran"
            if not given.intact(written):
                raise Fault(f"{key} or what lies around it was changed")
    problem = None if bad else call.wrong()
    if problem is not None:
        raise Fault(problem)
    return outcome


def numbers(first: int, minutes: float) -> Iterator[int]:
    end, index = time.monotonic() + minutes * 60, first
    while time.monotonic() < end:
        yield index
        index += 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    arguments = parser.parse_args()
    if core() is None:
        sys.exit(f"there is nothing to call: {absence()}")
    bindings = {name for name in dir(core()) if not name.startswith("_")} - HARMLESS
    if left := sorted(bindings - set(CASES)):
        print(f"without a case here, so not called: {', '.join(left)}")
    names = sorted(bindings & set(CASES))
    sanitized = b"__asan_init" in Path(core().__file__).read_bytes()
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    told = time.monotonic()
    for index in numbers(arguments.first, arguments.minutes):
        rng = random.Random(f"{arguments.seed} {index}")
        name = rng.choice(names)
        try:
            counts[name, run_one(name, rng)] += 1
        except Fault as error:
            sys.exit(f"{name}: {error}; again: --seed {arguments.seed} --first {index}")
        if time.monotonic() > told + REPORT_SECONDS:
            told = time.monotonic()
            print(f"{index + 1 - arguments.first:,} calls", flush=True)
    parts = [f"{name} {counts[name, 'ran']:,} + {counts[name, 'refused']:,}" for name in names]
    print(
        f"fuzz_native: {arguments.minutes:g} minutes, seed {arguments.seed}, "
        f"{counts.total():,} calls (ran + refused: {'; '.join(parts)}), levels "
        f"{', '.join(core().levels())}, sanitizers {'on' if sanitized else 'off'}: nothing found"
    )


if __name__ == "__main__":
    main()

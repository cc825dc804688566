"""Random calls of every kernel of the native core, good and bad, with poison around every tensor.

    python benchmarks/fuzz_native.py --minutes 10         make fuzz: the same under the sanitizers

What is called is in `fuzz_cases.py`; instruction set and number of threads are drawn as well. A
good call must run, agree with the plain way in float64, leave its inputs as they were and write
nothing around its outputs. A call with one argument that does not fit must be refused with
ValueError or TypeError, or, where it does fit after all, leave the buffers as whole. `--seed` and
`--first` repeat a call that failed.
"""

import argparse
import collections
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from fuzz_cases import BF16, CASES, F32, I64, Call, Guarded

from interlace.ops.native import absence, core

BAD = 0.4  # share of calls in which one argument does not fit
REPORT_SECONDS = 30
HARMLESS = {"level", "levels", "use_level"}


class Fault(Exception):
    """What is wrong with a kernel."""


def pass_on(value: Any) -> Any:
    """The argument as the kernel takes it."""
    if isinstance(value, Guarded):
        return value.tensor
    return type(value)(map(pass_on, value)) if isinstance(value, (list, tuple)) else value


def guarded(value: Any) -> Iterator[Guarded]:
    """Every buffer of an argument."""
    if isinstance(value, Guarded):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from guarded(part)


def spoil(rng: random.Random, call: Call) -> tuple[str, Any]:
    """The name of one argument and what to pass in its place."""
    name = rng.choice(list(call.arguments))
    given = call.arguments[name]
    if isinstance(given, (list, tuple)):
        items = [pass_on(x) for x in given]
        where = rng.randrange(len(items))
        change = rng.randrange(6)
        if change == 0:
            return name, items[:-1]
        if change == 1:
            return name, [*items, items[where]]
        item = given[where]
        inner = rng.choice(item) if isinstance(item, tuple) else item
        _, value = spoil_one(rng, name, inner)
        items[where] = value
        if isinstance(item, tuple) and change < 5:
            items[where] = tuple(value if x is inner else x.tensor for x in item)
        return name, items
    return spoil_one(rng, name, given)


def spoil_one(rng: random.Random, name: str, given: Any) -> tuple[str, Any]:
    nothing = [None, "text", [1.0], 3, object()]
    if not isinstance(given, Guarded):
        # a tensor that may be left out, or a number
        return name, rng.choice([*nothing, torch.ones(2, 3), torch.ones(5, dtype=I64)])
    x = given.tensor
    if name in ("lengths", "offsets") and x.numel() and rng.random() < 0.7:
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
    passed = {key: pass_on(value) for key, value in call.arguments.items()}
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
    filled = {id(g) for key in call.filled for g in guarded(call.arguments[key])}
    for key, value in call.arguments.items():
        for buffer in guarded(value):
            if not buffer.intact(outcome == "ran" and id(buffer) in filled):
                raise Fault(f"{key} or what lies around it was changed")
    problem = None if bad or call.wild else call.wrong()
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

"""The calls of `fuzz_native.py`: random ones for each kernel of the native core, and what is right.

A tensor lies in a buffer of poison (`Guarded`). Sizes are drawn at the edges of tiles and keep one
call small enough for a sanitizer. In a wild call some numbers are huge, infinite or NaN, and only
the memory is looked at.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from interlace.ops import mxfp4
from interlace.ops.attention import attention_absorbed
from interlace.ops.delta_rule import kda_gate, kda_reference
from interlace.ops.linear import Packed, unpack

BF16, F32, I64 = torch.bfloat16, torch.float32, torch.int64
EDGES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 513)
WILD = 0.1  # share of calls with wild numbers
WORK = 4_000_000  # multiply-adds of one call, at most: it may run under a sanitizer, unvectorised


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
    return float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max


@dataclass
class Call:
    """One call: arguments in order, which of them it fills, and what is wrong with those."""

    arguments: dict[str, Any]
    filled: tuple[str, ...]
    wrong: Callable[[], str | None]
    wild: bool = False


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


def pick(rng: random.Random) -> torch.dtype:
    return rng.choice((F32, BF16))


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def differs(got: Tensor, want: Tensor, bound: float, name: str) -> str | None:
    """What is wrong with `got`, or None."""
    if got.numel() == 0:
        return None
    same = got.double() == want  # infinities too
    off = (got.double() - want).abs().masked_fill(same, 0.0)
    error = float(off.max()) / max(1.0, float(want.masked_fill(~want.isfinite(), 0.0).abs().max()))
    return None if error <= bound else f"{name} is off by {error:.3g}, allowed {bound:.3g}"


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
    arguments: dict[str, Any] = {
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
        want, want_lse = attention_absorbed(
            q.double(), latent, uk, uv, lengths=lengths, scale=scale, return_lse=True
        )
        # scores are about this large at most, and off by 2^-8 of it; a weight is off by e to that
        spread = abs(scale) * (n + p) ** 0.5 * 4
        bound = 0.02 + 2.0**-8 * spread
        problem = differs(arguments["out"].tensor, want, bound, "out")
        if arguments["lse"] is not None:
            problem = problem or differs(arguments["lse"].tensor, want_lse, bound, "lse")
        return problem

    return Call(arguments, ("out", "lse"), wrong, wild)


def rms_norm(rng: random.Random) -> Call:
    dtype, count, width = rng.choice((F32, BF16)), size(rng, 40), size(rng, 700)
    x, weight = normal(rng, (count, width), dtype, 3), normal(rng, (width,), dtype, 1)
    wild = turn_wild(rng, x, weight)
    out = rows(rng, empty((count, width), dtype))
    arguments = {"x": rows(rng, x), "weight": dense(rng, weight), "out": out, "eps": 1e-5}

    def wrong() -> str | None:
        want = normed(x, weight, 1e-5)
        return differs(out.tensor, want, 1e-5 if dtype == F32 else 0.02, "out")

    return Call(arguments, ("out",), wrong, wild)


def gated_norm(rng: random.Random) -> Call:
    count, width = size(rng, 40), size(rng, 700)
    x = normal(rng, (count, width), rng.choice((F32, BF16)), 3)
    gate, weight = normal(rng, (count, width), BF16, 2), normal(rng, (width,), pick(rng), 1)
    wild = turn_wild(rng, x, gate, weight)
    out = dense(rng, empty((count, width), BF16))
    arguments = {
        "x": dense(rng, x),
        "gate": dense(rng, gate),
        "weight": dense(rng, weight),
        "out": out,
        "eps": 1e-5,
    }

    def wrong() -> str | None:
        want = normed(x, weight, 1e-5) * gate.double().sigmoid()
        return differs(out.tensor, want, 0.02, "out")

    return Call(arguments, ("out",), wrong, wild)


def decay(rng: random.Random) -> Call:
    count, heads, key = size(rng, 20), size(rng, 9), size(rng, 130)
    z, b = normal(rng, (count, heads * key), BF16, 2), normal(rng, (count, heads), BF16, 2)
    rate, bias = normal(rng, (heads,), F32, 1), normal(rng, (heads * key,), F32, 1)
    bound = rng.choice((0.0, -5.0))
    wild = turn_wild(rng, z, b, rate, bias)
    g, beta = dense(rng, empty((count, heads * key), F32)), dense(rng, empty((count, heads), F32))
    arguments = {
        "z": rows(rng, z),
        "b": rows(rng, b),
        "rate": dense(rng, rate),
        "bias": dense(rng, bias),
        "g": g,
        "beta": beta,
        "bound": bound,
    }

    def wrong() -> str | None:
        if not z.numel():
            return None
        shape = 1, count, heads, key
        bias_ = bias.double().view(shape[2:])
        want = kda_gate(z.double().view(shape), rate.double(), bias_, bound or None)
        problem = differs(g.tensor, want.double().view_as(z), 1e-4, "g")
        return problem or differs(beta.tensor, b.double().sigmoid(), 1e-5, "beta")

    return Call(arguments, ("g", "beta"), wrong, wild)


def convolve(rng: random.Random) -> Call:
    batch, tokens, width = size(rng, 3), size(rng, 12), rng.randrange(1, 17)
    channels = [size(rng, 130) for _ in range(rng.randrange(1, 5))]
    x = [normal(rng, (batch, tokens, d), BF16, 1) for d in channels]
    taps = [normal(rng, (d, width), pick(rng), 0.5) for d in channels]
    windows = [normal(rng, (batch, width - 1, d), BF16, 1) for d in channels]
    wild = turn_wild(rng, *x, *taps, *windows)
    silu = rng.random() < 0.5
    outs = [dense(rng, empty(y.shape, BF16)) for y in x]
    lasts = [dense(rng, empty(y.shape, BF16)) for y in windows]
    arguments = {
        "x": [rows(rng, y) for y in x],
        "taps": [dense(rng, y) for y in taps],
        "windows": [dense(rng, y) for y in windows],
        "outs": outs,
        "lasts": lasts,
        "silu": silu,
    }

    def wrong() -> str | None:
        for y, w, before, out, last in zip(x, taps, windows, outs, lasts, strict=True):
            all_inputs = torch.cat([before, y], 1)
            moved = [
                all_inputs[:, i : i + tokens].double() * w[:, i].double() for i in range(width)
            ]
            want = torch.stack(moved).sum(0)
            want = want * want.sigmoid() if silu else want
            problem = differs(out.tensor, want, 0.02, "outs")
            problem = problem or differs(last.tensor, all_inputs[:, tokens:].double(), 0.0, "lasts")
            if problem:
                return problem
        return None

    return Call(arguments, ("outs", "lasts"), wrong, wild)


def kda_step(rng: random.Random) -> Call:
    dtype = pick(rng)
    while True:
        b, t, h = size(rng, 4), size(rng, 40), size(rng, 9)
        key, value = size(rng, 130), size(rng, 260)
        if b * t * h * key * value <= WORK // 8:
            break
    unit_eps = rng.choice((None, 1e-6))
    q, k = normal(rng, (b, t, h, key), dtype, 1), normal(rng, (b, t, h, key), dtype, 1)
    if unit_eps is None:
        q, k = (normalize(x.float(), dim=-1).to(dtype) for x in (q, k))
    v, beta = normal(rng, (b, t, h, value), dtype, 1), normal(rng, (b, t, h), F32, 1).sigmoid()
    g = None if rng.random() < 0.2 else -normal(rng, (b, t, h, key), F32, 1).abs()
    lengths = offsets = None
    parts = [(row, 0, t) for row in range(b)]
    if rng.random() < 0.4:
        lengths = torch.tensor([size(rng, t) for _ in range(b)], dtype=I64)
        parts = [(row, 0, int(end)) for row, end in enumerate(lengths)]
    elif rng.random() < 0.4:
        cuts = [[0, *sorted(size(rng, t) for _ in range(rng.randrange(3))), t] for _ in range(b)]
        parts = [(row, c[i], c[i + 1]) for row, c in enumerate(cuts) for i in range(len(c) - 1)]
        offsets = torch.tensor([0, *(row * t + end for row, _, end in parts)], dtype=I64)
    state = None
    if rng.random() < 0.7:
        state = normal(rng, (len(parts), h, key, value), F32, 1)
    wild = turn_wild(rng, q, k, v, beta)
    out = dense(rng, empty((b, t, h, value), dtype))
    held = None if state is None else dense(rng, state)
    same = held is not None and rng.random() < 0.5
    last = held if same else dense(rng, empty((len(parts), h, key, value), F32))
    assert last is not None
    arguments = {
        "q": rows(rng, q),
        "k": rows(rng, k),
        "v": rows(rng, v),
        "g": None if g is None else rows(rng, g),
        "beta": rows(rng, beta),
        "state": held,
        "out": out,
        "last": last,
        "lengths": None if lengths is None else dense(rng, lengths),
        "offsets": None if offsets is None else dense(rng, offsets),
        "scale": 0.3,
        "unit_eps": unit_eps,
    }

    def wrong() -> str | None:
        want = torch.zeros(b, t, h, value, dtype=torch.float64)
        after = torch.zeros(len(parts), h, key, value, dtype=torch.float64)
        for i, (row, begin, end) in enumerate(parts):
            some = slice(row, row + 1), slice(begin, end)
            before = after[i : i + 1] if state is None else state[i : i + 1].double()
            q_, k_, v_, beta_ = (x[some].double() for x in (q, k, v, beta))
            if unit_eps is not None:
                q_, k_ = (x / (x.square().sum(-1, True) + unit_eps).sqrt() for x in (q_, k_))
            if end == begin or not h * key * value:
                after[i] = before[0]
                continue
            g_ = None if g is None else g[some].double()
            want[some], after[i : i + 1] = kda_reference(
                q_, k_, v_, g_, beta_, state=before, scale=0.3, compute_dtype=torch.float64
            )
        problem = differs(last.tensor, after, 1e-4, "last")
        return problem or differs(out.tensor, want, 1e-4 if dtype == F32 else 0.02, "out")

    return Call(arguments, ("out", "last"), wrong, wild)


def matrix(rng: random.Random, out: int, width: int) -> tuple[Any, Tensor]:
    """A weight in one of the four forms, and its values."""
    form = rng.randrange(4) if width % 32 == 0 else 0
    if form == 0:
        weight = normal(rng, (out, width), BF16, max(width, 1) ** -0.5)
        return rows(rng, weight), weight.double()
    shape = out, width if form == 1 else width // 2
    low, high = (-127, 128) if form == 1 else (0, 256)
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    codes = torch.randint(low, high, shape, generator=generator)
    codes = codes.to(torch.int8 if form == 1 else torch.uint8)
    if form == 3:
        scale = torch.randint(118, 126, (out, width // 32), generator=generator).to(torch.uint8)
    else:
        scale = normal(rng, (out, width // 32), BF16, 0.02 if form == 2 else 0.001)
    values = torch.zeros(out, width, dtype=torch.float64)
    if codes.numel():
        expand = mxfp4.unpack if form == 3 else lambda *given: unpack(Packed(*given[:2]), given[2])
        values = expand(codes, scale, torch.float64)
    return (rows(rng, codes), rows(rng, scale)), values


def linear(rng: random.Random) -> Call:
    count, width = size(rng, 20), size(rng, 300)
    if rng.random() < 0.6:
        width = width // 32 * 32
    glu = rng.choice(("", "", "swish", "situ"))
    outs = [size(rng, 70) for _ in range(rng.randrange(1, 9))]
    outs = [outs[0]] * 2 if glu else outs
    x = normal(rng, (count, width), BF16, 1)
    wild = turn_wild(rng, x)
    weights = [matrix(rng, f, width) for f in outs]
    shapes = [(count, f) for f in (outs[:1] if glu else outs)]
    results = [rows(rng, empty(shape, pick(rng))) for shape in shapes]
    arguments = {
        "x": rows(rng, x),
        "weights": [w for w, _ in weights],
        "outs": results,
        "glu": glu,
        "beta": rng.choice((0.0, 4.0)),
        "linear_beta": rng.choice((0.0, 7.0)),
    }

    def wrong() -> str | None:
        if glu == "situ":
            return None
        wants = [x.double() @ values.T for _, values in weights]
        if glu:
            wants = [wants[0] * wants[0].sigmoid() * wants[1]]
        pairs = zip(results, wants, strict=True)
        return next(filter(None, (differs(r.tensor, y, 0.02, "outs") for r, y in pairs)), None)

    return Call(arguments, ("outs",), wrong, wild)


def limit(rng: random.Random) -> Call:
    loop = rng.choice(("dot", "multiply", "read", "read_write"))
    data = dense(rng, normal(rng, (size(rng, 600),), F32, 1)) if "read" in loop else None
    arguments = {"loop": loop, "data": data, "rounds": rng.randrange(5)}
    return Call(arguments, ("data",) if loop == "read_write" else (), lambda: None)


CASES: dict[str, Callable[[random.Random], Call]] = {
    "convolve": convolve,
    "decay": decay,
    "gated_norm": gated_norm,
    "kda_step": kda_step,
    "limit": limit,
    "linear": linear,
    "mla_decode": lambda rng: attention("mla_decode", rng),
    "mla_prefill": lambda rng: attention("mla_prefill", rng),
    "rms_norm": rms_norm,
}

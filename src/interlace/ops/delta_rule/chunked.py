"""The gated delta rule in chunks, all but two small products per tile batched; its own backward.

    chunk   tokens handled at once; one state is kept per chunk for the backward
    tile    16 tokens; inside a chunk, work that does not need the state runs over all tiles at once

    per tile   A, P = scores          J = (I + A diag(beta))^-1       (forward substitution)
               Y = J v - J Kg S       U = beta Y                      what is written
               S' = diag(gamma) S + Kt^T U                            tile after tile
               o = Qg S + P U

The derivation, forward and backward, is in this folder's README. Inside, tensors are
`[tiles, B, H, ...]`, float32 (float64 for float64 inputs); the state is float32; the output has the
dtype of v.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from interlace.errors import ShapeError
from interlace.ops.delta_rule.packing import (
    FORGET,
    Call,
    check_call,
    first_tokens,
    read_offsets,
    silence_padding,
    to_rows,
)
from interlace.ops.delta_rule.tiles import HALF, TILE, Patterns, base_block, patterns
from interlace.shapes import Float, Int, Tensor

CHUNK = 64


def kda_chunk(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None,
    beta: Float[Tensor, "B T H"],
    *,
    state: Float[Tensor, "S H K V"] | None = None,
    scale: float | None = None,
    lengths: Int[Tensor, "B"] | None = None,
    cu_seqlens: Int[Tensor, "offsets"] | None = None,
    chunk: int = CHUNK,
    min_decay: float | None = None,
    return_state: bool = True,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "S H K V"] | None]:
    """Gated delta rule in chunks (Kimi Linear report, equations 2 to 9; K3 report, 3 and 4).

    Args:
        q: queries, L2-normalised, not yet scaled.
        k: keys, L2-normalised.
        v: values; the output has their dtype.
        g: logarithm of the decay per key channel, at most 0; None for no decay.
        beta: writing strength, in [0, 1].
        state: state before the first token of each row (of each segment when packed); zeros when
            None. It is not modified.
        scale: factor on q; K**-0.5 when None.
        lengths: real tokens of each row; the rest is padding, changes nothing and reads 0.
        cu_seqlens: offsets of packed segments in the rows laid end to end; one may be empty.
        chunk: tokens handled at once, a multiple of 16; memory grows with it, and one state per
            chunk is kept for the backward.
        min_decay: a promise that no g lies below this (the bounded gate's limit); it saves work.
            None: g may be as low as it likes.
        return_state: whether the state is wanted; without it, and without `state`, packed
            sequences run in place.

    Returns:
        Output, and the state after the last real token of each row or segment, float32 (None
        without `return_state`).

    Raises:
        ShapeError: when shapes, offsets or the chunk length do not fit.
    """
    check_call(q, k, v, g, beta, state, lengths, cu_seqlens)
    if chunk < TILE or chunk % TILE:
        raise ShapeError(f"chunk must be a positive multiple of {TILE}; got {chunk}")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    base = base_block(0.0 if g is None else min_decay)
    call = Call(q, k, v, torch.zeros_like(q) if g is None else g, beta)
    if cu_seqlens is None:
        padded = None
        if lengths is not None:
            call, padded = silence_padding(call, lengths)
        out, last = _apply(call, state, None, scale, chunk, base)
        if padded is not None:
            out = out.masked_fill(padded[..., None, None], 0.0)
        return out, (last if return_state else None)
    offsets = read_offsets(cu_seqlens, q.shape[0], q.shape[1])
    if state is None and not return_state:
        first = first_tokens(cu_seqlens, q.shape[0], q.shape[1])
        return _apply(call, None, first, scale, chunk, base)[0], None
    rows, sizes, target = to_rows(call, offsets)
    rows, _ = silence_padding(rows, sizes)
    out, last = _apply(rows, state, None, scale, chunk, base)
    out = out.flatten(0, 1).index_select(0, target).view_as(v)
    return out, (last if return_state else None)


class _Pass(NamedTuple):
    """One chunk brought to tiles, and what both directions need of it; n = tiles * B * H."""

    kq: Tensor  # [n, 2, C, K]: keys, scaled queries
    beta: Tensor  # [n, C, 1]
    crossing: tuple[Tensor, Tensor] | None  # factors of rows 8-15 and columns 0-7, [n, C/2, K]
    levels: list[tuple[Tensor, Tensor, Tensor]]  # row factor, column factor, mask
    from_start: Tensor  # [n, C, K]: exp of the decay from before the tile to t
    to_end: Tensor  # [n, C, K]: exp of the decay from t to the tile's end
    scores: Tensor  # [n, 2C, C]: A over P
    J: Tensor  # [n, C, C]
    kq_start: Tensor  # [n, 2C, K]: Kg over Qg
    k_end: Tensor  # [n, C, K]: Kt
    Yk: Tensor  # [n, C, K]: -J Kg
    Y: Tensor  # [n, C, V]
    U: Tensor  # [n, C, V]
    states: Tensor  # [tiles + 1, B*H, K, V]


def _to_tiles(x: Tensor, a: int, b: int, tiles: int) -> Tensor:
    """Tokens a..b of `[B, T, H, X]`, padded with zeros, as `[tiles, B, H, C, X]`."""
    x = x[:, a:b]
    missing = tiles * TILE - (b - a)
    if missing:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
    x = x.reshape(x.shape[0], tiles, TILE, *x.shape[2:])
    return x.permute(1, 0, 3, 2, 4)


def _from_tiles(x: Tensor, into: Tensor, a: int, b: int) -> None:
    """Write `[tiles, B, H, C, X]` to tokens a..b of `into`, `[B, T, H, X]`."""
    tokens = x.permute(1, 0, 3, 2, 4)  # [B, tiles, C, H, X]
    if x.shape[0] * TILE == b - a:
        into[:, a:b].view(tokens.shape).copy_(tokens)
    else:
        into[:, a:b].copy_(tokens.flatten(1, 2)[:, : b - a])


def _invert(A: Tensor, beta: Tensor, merges: tuple[Tensor, ...]) -> Tensor:
    """(I + A diag(beta))^-1 by forward substitution in blocks of 1, 2, 4, 8 tokens.

    With both halves of a block inverted, the block's inverse has -J2 L21 J1 below its diagonal.
    """
    L = A * beta.mT
    J = L * -merges[0]
    J.diagonal(dim1=-2, dim2=-1).add_(1.0)
    for merge in merges[1:]:
        J = torch.baddbmm(J, torch.bmm(J, L * merge), J, alpha=-1.0)
    return J


def _run_chunk(
    call: Call,
    first: Tensor | None,
    segment: Tensor | None,
    S: Tensor,
    a: int,
    b: int,
    scale: float,
    fixed: Patterns,
) -> _Pass:
    """Tokens a..b from state S `[B*H, K, V]`: everything that both directions need."""
    batch, _, heads, key_dim = call.q.shape
    value_dim = call.v.shape[-1]
    tiles = -(-(b - a) // TILE)
    dtype = S.dtype
    n = tiles * batch * heads
    kq = S.new_empty(tiles, batch, heads, 2, TILE, key_dim)
    kq[:, :, :, 0].copy_(_to_tiles(call.k, a, b, tiles))
    torch.mul(_to_tiles(call.q, a, b, tiles).to(dtype), scale, out=kq[:, :, :, 1])
    kq = kq.view(n, 2, TILE, key_dim)
    g = _to_tiles(call.g, a, b, tiles).to(dtype).reshape(n, TILE, key_dim)
    v = _to_tiles(call.v, a, b, tiles).to(dtype).reshape(n, TILE, value_dim)
    beta = _to_tiles(call.beta[..., None], a, b, tiles).to(dtype).reshape(n, TILE, 1)

    base_mask = fixed.base_mask.view(2 * TILE, TILE)
    kept = g
    if first is not None and segment is not None:
        begins = _to_tiles(first[..., None, None], a, b, tiles)
        kept = g.view(tiles, batch, heads, TILE, key_dim).masked_fill(begins, FORGET).view_as(g)
        owner = _to_tiles(segment[..., None, None], a, b, tiles)  # [tiles, B, 1, C, 1]
        same = (owner == owner.mT)[:, :, :, None]
        base_mask = (fixed.base_mask * same).expand(tiles, batch, heads, 2, TILE, TILE)
        base_mask = base_mask.reshape(n, 2 * TILE, TILE)
    # A factor this small is no part of any result; left in, products of two would be subnormal
    # numbers, which make a matrix product tens of times slower.
    least = torch.finfo(dtype).tiny ** (1 / 3)
    factors = torch.threshold_(torch.matmul(fixed.sums, kept).exp_(), least, 0.0)
    factors = factors.view(n, -1, TILE, key_dim)
    crossing: tuple[Tensor, Tensor] | None = None
    levels: list[tuple[Tensor, Tensor, Tensor]] = []
    if fixed.halves:
        crossing = factors[:, 0, HALF:], factors[:, 0, :HALF]
    for j, mask in enumerate(fixed.half_masks[1:], start=1):
        levels.append((factors[:, j], factors[:, j], mask))
    if fixed.base > 1:
        row = torch.matmul(fixed.base_sums, g).exp_()
        levels.append((row, row.reciprocal(), base_mask))
    from_start, to_end = factors[:, -2], factors[:, -1]

    k = kq[:, 0]
    scores = None
    for row, col, mask in levels:
        part = torch.bmm((kq * row[:, None]).view(n, 2 * TILE, key_dim), (k * col).mT)
        scores = part.mul_(mask) if scores is None else scores.addcmul_(part, mask)
    assert scores is not None
    if crossing is not None:
        rows = (kq[:, :, HALF:] * crossing[0][:, None]).view(n, TILE, key_dim)
        part = torch.bmm(rows, (k[:, :HALF] * crossing[1]).mT)
        scores.view(n, 2, TILE, TILE)[:, :, HALF:, :HALF].add_(part.view(n, 2, HALF, HALF))
    if fixed.base == 1:
        scores[:, TILE:].diagonal(dim1=-2, dim2=-1).add_((k * kq[:, 1]).sum(-1))
    J = _invert(scores[:, :TILE], beta, fixed.merges)

    kq_start = (kq * from_start[:, None]).view(n, 2 * TILE, key_dim)
    k_end = k * to_end
    Y = torch.bmm(J, v).view(tiles, -1, TILE, value_dim)
    Yk = torch.bmm(J, kq_start[:, :TILE]).neg_()
    U = torch.empty_like(Y)
    states = S.new_empty(tiles + 1, *S.shape)
    states[0] = S
    steps = Yk.view(tiles, -1, TILE, key_dim)
    ends = k_end.view(tiles, -1, TILE, key_dim).mT
    betas = beta.view(tiles, -1, TILE, 1)
    decays = from_start[:, -1, :, None].reshape(tiles, -1, key_dim, 1)
    each = (x.unbind() for x in (Y, U, steps, ends, betas, decays, states[1:]))
    for y, u, step, end, weight, decay, after in zip(*each, strict=True):
        torch.mul(y.baddbmm_(step, S), weight, out=u)
        S = torch.mul(S, decay, out=after).baddbmm_(end, u)
    Y, U = Y.view(n, TILE, value_dim), U.view(n, TILE, value_dim)
    return _Pass(
        kq, beta, crossing, levels, from_start, to_end, scores, J, kq_start, k_end, Yk, Y, U, states
    )


def _chunk_backward(
    run: _Pass, both: Tensor, dS: Tensor, fixed: Patterns
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of one chunk, in the order and with the names of the README.

    `both` is `[n, 2C, V]` with dO in its second half; dS `[B*H, K, V]` is overwritten by the
    gradient of the chunk's first state.
    """
    n, _, _, key_dim = run.kq.shape
    value_dim = both.shape[-1]
    tiles = run.states.shape[0] - 1
    A, P = run.scores[:, :TILE], run.scores[:, TILE:]
    S = run.states[:-1].view(n, key_dim, value_dim)
    dO = both[:, TILE:]

    dU = torch.bmm(P.mT, dO).view(tiles, -1, TILE, value_dim)
    dY = torch.empty_like(dU)
    flow = torch.empty_like(run.states)
    torch.bmm(run.kq_start[:, TILE:].mT, dO, out=flow[:-1].view(n, key_dim, value_dim))
    flow[tiles] = dS
    steps = run.Yk.view(tiles, -1, TILE, key_dim).mT
    ends = run.k_end.view(tiles, -1, TILE, key_dim)
    betas = run.beta.view(tiles, -1, TILE, 1)
    decays = run.from_start[:, -1, :, None].reshape(tiles, -1, key_dim, 1)
    each = (x.unbind()[::-1] for x in (dU, dY, steps, ends, betas, decays, flow[:-1]))
    after = flow[tiles]
    for du, dy, step, end, weight, decay, before in zip(*each, strict=True):
        torch.mul(du.baddbmm_(end, after), weight, out=dy)
        after = before.addcmul_(after, decay).baddbmm_(step, dy)
    dS.copy_(after)
    dS_next = flow[1:].view(n, key_dim, value_dim)
    dU, dY = dU.view(n, TILE, value_dim), dY.view(n, TILE, value_dim)

    dR = torch.bmm(run.J.mT, dY)
    dbeta = dU.baddbmm_(A.mT, dR, alpha=-1.0).mul_(run.Y).sum(-1, keepdim=True)
    both[:, :TILE] = -dR
    dkq = torch.bmm(both, S.mT).view(n, 2, TILE, key_dim).mul_(run.from_start[:, None])
    dscores = torch.bmm(both, run.U.mT)
    k = run.kq[:, 0]
    dcol = torch.bmm(run.U, dS_next.mT).mul_(run.to_end)
    whole = torch.addcmul((k * dcol).sum(1), run.from_start[:, -1], (S * dS_next).sum(-1))
    for row, col, mask in run.levels:
        masked = dscores * mask
        rows = (run.kq * row[:, None]).view(n, 2 * TILE, key_dim)
        dkq.addcmul_(torch.bmm(masked, k * col).view_as(dkq), row[:, None])
        dcol.addcmul_(torch.bmm(masked.mT, rows), col)
    if run.crossing is not None:
        row, col = run.crossing
        block = dscores.view(n, 2, TILE, TILE)[:, :, HALF:, :HALF].reshape(n, TILE, HALF)
        rows = (run.kq[:, :, HALF:] * row[:, None]).view(n, TILE, key_dim)
        part = torch.bmm(block, k[:, :HALF] * col).view(n, 2, HALF, key_dim)
        dkq[:, :, HALF:].addcmul_(part, row[:, None])
        dcol[:, :HALF].addcmul_(torch.bmm(block.mT, rows), col)
    dG = (run.kq * dkq).view(n, 2 * TILE, key_dim)
    dG[:, :TILE].addcmul_(k, dcol, value=-1.0)
    dg = torch.matmul(fixed.upper, dG).add_(whole[:, None])
    if fixed.base == 1:
        diagonal = dscores[:, TILE:].diagonal(dim1=-2, dim2=-1)[..., None]
        dkq[:, 1].addcmul_(diagonal, k)
        dcol.addcmul_(diagonal, run.kq[:, 1])
    return dkq[:, 1], dcol.add_(dkq[:, 0]), dR, dg, dbeta


def _plan(call: Call, base: int, first: Tensor | None) -> tuple[torch.dtype, Patterns, Any]:
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    segment = None if first is None else first.cumsum(1)
    return dtype, patterns(base, dtype, call.q.device), segment


class _Chunked(torch.autograd.Function):
    """Keeps q, k, v, g, beta and one state per chunk; the backward recomputes the rest."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: Tensor | None,
        first: Tensor | None,
        scale: float,
        chunk: int,
        base: int,
    ) -> tuple[Tensor, Tensor]:
        call = Call(q, k, v, g, beta)
        batch, tokens, heads, key_dim = q.shape
        value_dim = v.shape[-1]
        dtype, fixed, segment = _plan(call, base, first)
        S = torch.zeros(batch * heads, key_dim, value_dim, dtype=dtype, device=q.device)
        if state is not None:
            S.copy_(state.reshape(S.shape))
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        kept: list[Tensor] = []
        learns = any(ctx.needs_input_grad)
        for a in range(0, tokens, chunk):
            b = min(a + chunk, tokens)
            if learns:
                kept.append(S)
            run = _run_chunk(call, first, segment, S, a, b, scale, fixed)
            before = run.states[:-1].view(-1, key_dim, value_dim)
            o = torch.bmm(run.kq_start[:, TILE:], before).baddbmm_(run.scores[:, TILE:], run.U)
            _from_tiles(o.view(-1, batch, heads, TILE, value_dim), out, a, b)
            S = run.states[-1].clone()
        ctx.save_for_backward(q, k, v, g, beta, first, *kept)
        ctx.options = (scale, chunk, base, None if state is None else state.dtype)
        return out, S.view(batch, heads, key_dim, value_dim)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, g, beta, first, *kept = ctx.saved_tensors
        scale, chunk, base, state_dtype = ctx.options
        call = Call(q, k, v, g, beta)
        batch, tokens, heads, key_dim = q.shape
        value_dim = v.shape[-1]
        dtype, fixed, segment = _plan(call, base, first)
        dS = d_last.to(dtype).reshape(batch * heads, key_dim, value_dim).clone()
        grads = [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in call]
        grads[4] = grads[4][..., None]
        for index in reversed(range(len(kept))):
            a, b = index * chunk, min((index + 1) * chunk, tokens)
            run = _run_chunk(call, first, segment, kept[index], a, b, scale, fixed)
            tiles = run.states.shape[0] - 1
            both = dS.new_empty(tiles, batch, heads, 2 * TILE, value_dim)
            both[..., TILE:, :].copy_(_to_tiles(d_out, a, b, tiles))
            both = both.view(-1, 2 * TILE, value_dim)
            dq, dk, dv, dg, dbeta = _chunk_backward(run, both, dS, fixed)
            for part, into in zip((dq * scale, dk, dv, dg, dbeta), grads, strict=True):
                _from_tiles(part.reshape(tiles, batch, heads, TILE, part.shape[-1]), into, a, b)
        if first is not None:
            grads[3].masked_fill_(first[..., None, None], 0.0)
        d_state = None
        if state_dtype is not None:
            d_state = dS.view(batch, heads, key_dim, value_dim).to(state_dtype)
        return *grads[:4], grads[4][..., 0], d_state, None, None, None, None


def _apply(
    call: Call, state: Tensor | None, first: Tensor | None, scale: float, chunk: int, base: int
) -> tuple[Tensor, Tensor]:
    results: tuple[Tensor, Tensor] = _Chunked.apply(*call, state, first, scale, chunk, base)  # type: ignore[no-untyped-call]
    return results

"""The gated delta rule in chunks: everything but a small product per tile is batched, and its own backward.

    chunk   tokens handled at once; one state is kept per chunk for the backward
    tile    16 tokens; inside a chunk, work that does not need the state runs over all tiles at once

    per tile   A, P = scores          J = (I + A diag(beta))^-1       (forward substitution)
               Y = J v - J Kg S       U = beta Y                      what is written
               S' = (diag(gamma) - Kt^T beta J Kg) S + Kt^T beta J v  one product per tile
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
from interlace.ops.delta_rule.tiles import TILE, Patterns, base_block, patterns
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
    cu_seqlens: Int[Tensor, "S+1"] | None = None,
    chunk: int = CHUNK,
    min_decay: float | None = None,
    return_state: bool = True,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "S H K V"] | None]:
    """Gated delta rule in chunks (Kimi Linear report, equations 2 to 9; K3 report, equations 3 and 4).

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
        cu_seqlens: offsets of packed segments in the rows laid end to end; S segments, possibly empty.
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
        out, last = _Chunked.apply(*call, state, None, scale, chunk, base)
        if padded is not None:
            out = out.masked_fill(padded[..., None, None], 0.0)
        return out, (last if return_state else None)
    offsets = read_offsets(cu_seqlens, q.shape[0], q.shape[1])
    if state is None and not return_state:
        first = first_tokens(cu_seqlens, q.shape[0], q.shape[1])
        return _Chunked.apply(*call, None, first, scale, chunk, base)[0], None
    rows, sizes, target = to_rows(call, offsets)
    rows, _ = silence_padding(rows, sizes)
    out, last = _Chunked.apply(*rows, state, None, scale, chunk, base)
    out = out.flatten(0, 1).index_select(0, target).view_as(v)
    return out, (last if return_state else None)


class _Pass(NamedTuple):
    """One chunk brought to tiles, and all of it that does not depend on the state; n = tiles * B * H."""

    kq: Tensor  # [n, 2, C, K]: keys, scaled queries
    beta: Tensor  # [n, C, 1]
    levels: list[tuple[Tensor, Tensor, Tensor]]  # row factor, column factor, mask
    from_start: Tensor  # [n, C, K]: exp of the decay from before the tile to t
    to_end: Tensor  # [n, C, K]: exp of the decay from t to the tile's end
    scores: Tensor  # [n, 2C, C]: A over P
    J: Tensor  # [n, C, C]
    kq_start: Tensor  # [n, 2C, K]: Kg over Qg
    k_end: Tensor  # [n, C, K]: Kt
    Y0: Tensor  # [n, C, V]: J v
    Yk: Tensor  # [n, C, K]: -J Kg
    states: Tensor  # [tiles + 1, B*H, K, V]
    transition: Tensor  # [tiles, B*H, K, K]


def _to_tiles(x: Tensor, a: int, b: int, tiles: int) -> Tensor:
    """Tokens a..b of `[B, T, H, X]`, padded with zeros, as `[tiles, B, H, C, X]` (a view if it can)."""
    x = x[:, a:b]
    missing = tiles * TILE - (b - a)
    if missing:
        x = F.pad(x, (0, 0, 0, 0, 0, missing))
    return x.unflatten(1, (tiles, TILE)).permute(1, 0, 3, 2, 4)


def _from_tiles(x: Tensor, into: Tensor, a: int, b: int) -> None:
    """Write `[tiles, B, H, C, X]` to tokens a..b of `into`, `[B, T, H, X]`."""
    tokens = x.permute(1, 0, 3, 2, 4)  # [B, tiles, C, H, X]
    if x.shape[0] * TILE == b - a:
        into[:, a:b].unflatten(1, (x.shape[0], TILE)).copy_(tokens)
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
    factors = torch.matmul(fixed.sums, kept).exp_().view(n, -1, TILE, key_dim)
    levels = [(factors[:, j], factors[:, j], mask) for j, mask in enumerate(fixed.half_masks)]
    levels = [(row, col, torch.cat((mask, mask))) for row, col, mask in levels]
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
    if fixed.base == 1:
        scores[:, TILE:].diagonal(dim1=-2, dim2=-1).add_((k * kq[:, 1]).sum(-1))
    J = _invert(scores[:, :TILE], beta, fixed.merges)

    kq_start = (kq * from_start[:, None]).view(n, 2 * TILE, key_dim)
    k_end = k * to_end
    Y0 = torch.bmm(J, v)
    Yk = torch.bmm(J, kq_start[:, :TILE]).neg_()
    k_beta = k_end * beta
    added = torch.bmm(k_beta.mT, Y0).view(tiles, -1, key_dim, value_dim)
    transition = torch.bmm(k_beta.mT, Yk)
    transition.diagonal(dim1=-2, dim2=-1).add_(from_start[:, -1])
    transition = transition.view(tiles, -1, key_dim, key_dim)
    states = S.new_empty(tiles + 1, *S.shape)
    states[0] = S
    for j in range(tiles):
        torch.baddbmm(added[j], transition[j], states[j], out=states[j + 1])
    return _Pass(
        kq, beta, levels, from_start, to_end, scores, J, kq_start, k_end, Y0, Yk, states, transition
    )


def _chunk_backward(
    run: _Pass, dO: Tensor, dS: Tensor, fixed: Patterns
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of one chunk; dS `[B*H, K, V]` is overwritten by that of the chunk's first state.

    The order and the names follow the README.
    """
    n, _, _, key_dim = run.kq.shape
    value_dim = dO.shape[-1]
    A, P = run.scores[:, :TILE], run.scores[:, TILE:]
    S = run.states[:-1].view(n, key_dim, value_dim)
    tiles = run.transition.shape[0]

    dU = torch.bmm(P.mT, dO)
    local = torch.bmm(run.kq_start[:, TILE:].mT, dO)
    local.baddbmm_(run.Yk.mT, dU * run.beta)
    local = local.view_as(run.states[:-1])
    dS_after = torch.empty_like(run.states)
    dS_after[tiles] = dS
    for j in reversed(range(tiles)):
        torch.baddbmm(local[j], run.transition[j].mT, dS_after[j + 1], out=dS_after[j])
    dS.copy_(dS_after[0])
    dS_next = dS_after[1:].view(n, key_dim, value_dim)

    Y = torch.baddbmm(run.Y0, run.Yk, S)
    U = Y * run.beta
    dU.baddbmm_(run.k_end, dS_next)
    dR = torch.bmm(run.J.mT, dU * run.beta)
    Z = torch.baddbmm(dU, A.mT, dR, alpha=-1.0)
    dbeta = (Z * Y).sum(-1, keepdim=True)

    both = torch.cat((-dR, dO), dim=1)  # [n, 2C, V]
    dkq = torch.bmm(both, S.mT).view(n, 2, TILE, key_dim) * run.from_start[:, None]
    dscores = torch.bmm(both, U.mT)
    dk_end = torch.bmm(U, dS_next.mT) * run.to_end
    dk = run.kq[:, 0]
    ends = (dk * dk_end).sum(1) + run.from_start[:, -1] * (S * dS_next).sum(-1)
    dcol = dk_end
    for row, col, mask in run.levels:
        masked = dscores * mask
        rows = (run.kq * row[:, None]).view(n, 2 * TILE, key_dim)
        dkq.addcmul_(torch.bmm(masked, run.kq[:, 0] * col).view_as(dkq), row[:, None])
        dcol = dcol.addcmul(torch.bmm(masked.mT, rows), col)
    dG = (run.kq * dkq).sum(1).sub_(run.kq[:, 0] * dcol)
    dG[:, -1].add_(ends)
    dg = torch.matmul(fixed.upper, dG)
    if fixed.base == 1:
        diagonal = dscores[:, TILE:].diagonal(dim1=-2, dim2=-1)[..., None]
        dkq[:, 1].addcmul_(diagonal, run.kq[:, 0])
        dcol = dcol.addcmul(diagonal, run.kq[:, 1])
    return dkq[:, 1], dkq[:, 0] + dcol, dR, dg, dbeta


def _plan(call: Call, base: int, first: Tensor | None) -> tuple[torch.dtype, Patterns, Any]:
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    segment = None if first is None else first.cumsum(1)
    return dtype, patterns(base, dtype, call.q.device), segment


class _Chunked(torch.autograd.Function):
    """Keeps q, k, v, g, beta and one state per chunk; the backward recomputes the rest."""

    @staticmethod
    def forward(  # type: ignore[override]
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
        kept = []
        for a in range(0, tokens, chunk):
            b = min(a + chunk, tokens)
            kept.append(S)
            run = _run_chunk(call, first, segment, S, a, b, scale, fixed)
            before = run.states[:-1].view(-1, key_dim, value_dim)
            U = torch.baddbmm(run.Y0, run.Yk, before).mul_(run.beta)
            o = torch.bmm(run.kq_start[:, TILE:], before).baddbmm_(run.scores[:, TILE:], U)
            _from_tiles(o.view(-1, batch, heads, TILE, value_dim), out, a, b)
            S = run.states[-1].clone()
        ctx.save_for_backward(q, k, v, g, beta, first, *kept)
        ctx.options = (scale, chunk, base, None if state is None else state.dtype)
        return out, S.view(batch, heads, key_dim, value_dim)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
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
            tiles = run.transition.shape[0]
            dO = _to_tiles(d_out, a, b, tiles).to(dtype).reshape(-1, TILE, value_dim)
            dq, dk, dv, dg, dbeta = _chunk_backward(run, dO, dS, fixed)
            for part, into in zip((dq * scale, dk, dv, dg, dbeta), grads, strict=True):
                _from_tiles(part.reshape(tiles, batch, heads, TILE, part.shape[-1]), into, a, b)
        if first is not None:
            grads[3].masked_fill_(first[..., None, None], 0.0)
        d_state = None
        if state_dtype is not None:
            d_state = dS.view(batch, heads, key_dim, value_dim).to(state_dtype)
        return *grads[:4], grads[4][..., 0], d_state, None, None, None, None

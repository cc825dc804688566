"""Causal attention over given keys and values, in query blocks, with a backward of its own.

    rows of the batch in groups     so that one block of scores stays in the processor's cache
      blocks of 128 queries         each visits the keys up to its end, from the first it can see
        s = q k^T                   in the dtype of the inputs
        p = exp(scale s - max)      float32, as are the sum and the log-sum-exp
        o = (p v) / sum             float32

The backward recomputes p from the saved log-sum-exp, so memory is linear in the tokens. Its row
term delta = sum(dO * O) reads the float32 output: a rounded one is biased where keys tie (README).
"""

from typing import Any

import torch

from interlace.ops.attention.layout import accumulation_dtype, check_expanded, segment_starts
from interlace.shapes import Float, Int, Tensor

__all__ = ["attention_expanded"]

QUERY_BLOCK = 128
# Scores of one group of rows: 2 MiB of float32, about the second-level cache of a core.
GROUP_ELEMENTS = 1 << 19

Starts = list[list[int]] | None


def attention_expanded(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B M H K"],
    v: Float[Tensor, "B M H V"],
    *,
    scale: float | None = None,
    lengths: Int[Tensor, "B"] | None = None,
    cu_seqlens: Int[Tensor, "offsets"] | None = None,
) -> Float[Tensor, "B T H V"]:
    """Causal attention; the queries are the last T of the M positions of each row.

    Query-key products run in the dtype of the inputs, softmax and the sum of values in float32, and
    the output is float32 (float64 for float64 inputs). Differentiable once in q, k and v. Spec
    section 4, steps 5 and 6; K3 report, section 2.1.2 for the output's dtype.

    Args:
        q: queries, nope and shared part side by side (width N + P).
        k: keys of the same width.
        v: values, of any width.
        scale: multiplies the scores; (N + P)**-0.5 when not given.
        lengths: real tokens of each right-padded row (T == M); padded tokens get 0.
        cu_seqlens: offsets of packed sequences in the rows laid end to end (T == M); a token sees
            its own sequence only.

    Raises:
        ShapeError: when the shapes do not fit together.
    """
    check_expanded(q, k, v, lengths, cu_seqlens)
    batch, tokens, _, width = q.shape
    starts = None if cu_seqlens is None else segment_starts(cu_seqlens, batch, tokens)
    padded = None
    if lengths is not None:
        padded = (torch.arange(tokens, device=q.device) >= lengths[:, None])[..., None, None]
        q, k, v = (x.masked_fill(padded, 0.0) for x in (q, k, v))
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))  # [B, H, T or M, width]
    o: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        q, k, v, width**-0.5 if scale is None else scale, starts
    )
    o = o.transpose(1, 2)  # [B, T, H, V]
    return o if padded is None else o.masked_fill(padded, 0.0)


def _blocks(q: Tensor, memory: int, starts: Starts) -> list[tuple[slice, slice, slice]]:
    """(rows, queries, keys) of each block of scores."""
    batch, heads, tokens, _ = q.shape
    past = memory - tokens
    size = min(QUERY_BLOCK, tokens)
    rows = (
        max(1, GROUP_ELEMENTS // max(1, heads * size * memory)) if q.device.type == "cpu" else batch
    )
    out = []
    for b in range(0, batch, rows):
        group = slice(b, min(b + rows, batch))
        for t in range(0, tokens, QUERY_BLOCK):
            end = min(t + QUERY_BLOCK, tokens)
            low = 0 if starts is None else min(row[t] for row in starts[group])
            out.append((group, slice(t, end), slice(low, past + end)))
    return out


def _hide(scores: Tensor, block: tuple[slice, slice, slice], starts: Starts, value: float) -> None:
    """Overwrite what a query must not see: later keys, and keys of earlier packed sequences."""
    group, queries, keys = block
    size = queries.stop - queries.start
    if size > 1:
        later = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu_(1)
        scores[..., -size:].masked_fill_(later, value)
    if starts is None:
        return
    for index, row in enumerate(starts[group]):
        # starts never fall along a row: the last one tells whether any lies after the first key
        if row[queries.stop - 1] > keys.start:
            first = torch.tensor(row[queries], device=scores.device)[:, None]
            column = torch.arange(keys.start, keys.stop, device=scores.device)
            scores[index].masked_fill_(column < first, value)


class _Attention(torch.autograd.Function):
    """Blocks forward and backward over `[B, H, T, width]`; float32 out."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, starts: Starts) -> Tensor:
        dtype = accumulation_dtype(q.dtype)
        wide_v = v.to(dtype)
        o = torch.zeros(*q.shape[:3], v.shape[-1], dtype=dtype, device=q.device)
        lse = torch.zeros(*q.shape[:3], 1, dtype=dtype, device=q.device)
        for block in _blocks(q, k.shape[2], starts):
            group, queries, keys = block
            p = (q[group, :, queries] @ k[group, :, keys].mT).to(dtype)  # [B, H, T, M]
            if scale < 0:
                p.neg_()
            _hide(p, block, starts, float("-inf"))
            top = p.amax(-1, keepdim=True)
            # max and scale commute only for a positive scale
            p.sub_(top).mul_(abs(scale)).exp_()
            total = p.sum(-1, keepdim=True)
            o[group, :, queries] = (p @ wide_v[group, :, keys]).div_(total)
            lse[group, :, queries] = total.log_().add_(top, alpha=abs(scale))
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.scale, ctx.starts = scale, starts
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, o, lse = ctx.saved_tensors
        scale, starts = ctx.scale, ctx.starts
        grad = grad.contiguous()
        delta = (grad * o).sum(-1, keepdim=True)
        narrow = grad.to(q.dtype)
        dq = torch.zeros_like(q, memory_format=torch.contiguous_format)
        dk = torch.zeros(k.shape, dtype=o.dtype, device=k.device)
        dv = torch.zeros(v.shape, dtype=o.dtype, device=v.device)
        for block in _blocks(q, k.shape[2], starts):
            group, queries, keys = block
            q_b, k_b, do_b = q[group, :, queries], k[group, :, keys], narrow[group, :, queries]
            p = (q_b @ k_b.mT).to(o.dtype)  # [B, H, T, M]
            p.mul_(scale).sub_(lse[group, :, queries]).exp_()
            _hide(p, block, starts, 0.0)
            dv[group, :, keys] += p.to(q.dtype).mT @ do_b
            ds = (do_b @ v[group, :, keys].mT).to(o.dtype)
            ds = ds.sub_(delta[group, :, queries]).mul_(p).to(q.dtype)
            dq[group, :, queries] = (ds @ k_b).mul_(scale)
            dk[group, :, keys] += (ds.mT @ q_b).mul_(scale)
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None

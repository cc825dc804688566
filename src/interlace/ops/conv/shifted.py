"""The short convolution as a sum of W shifted products, with a backward of its own.

    y_t = silu( w_3 x_t + w_2 x_{t-1} + w_1 x_{t-2} + w_0 x_{t-3} )       (depthwise; W = 4)

Before the first token of a row come the W - 1 inputs of its state. A packed batch is laid out with W - 1
slots in front of every segment, filled with that segment's state, so that no boundary needs a test.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

from interlace.errors import ShapeError
from interlace.ops.delta_rule.packing import read_offsets
from interlace.shapes import Float, Int, Tensor

__all__ = ["short_conv"]


def short_conv(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    *,
    state: Float[Tensor, "S W-1 D"] | None = None,
    lengths: Int[Tensor, "B"] | None = None,
    cu_seqlens: Int[Tensor, "S+1"] | None = None,
    activation: bool = True,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "S W-1 D"]]:
    """Depthwise causal convolution over time, then SiLU.

    Args:
        x: inputs, any float dtype.
        weight: taps per channel; tap W-1 multiplies the current token. A weight that is wider than `x`
            (float32 beside bf16) is used as it is, and the output has the dtype of `x`.
        state: the last W-1 inputs before each row, oldest first; zeros when None. When packed, one per
            segment (S segments); otherwise S is B.
        lengths: real tokens of each right-padded row; only the state depends on it.
        cu_seqlens: offsets of packed segments in the rows laid end to end; each starts from its state.
        activation: apply SiLU.

    Returns:
        The outputs, and the last W-1 inputs of each row or segment (older ones come from `state`).
        Both are new tensors; nothing given is changed. An output depends on no later token, to the bit.

    Raises:
        ShapeError: shapes that do not fit, or offsets that do not cover the rows.

    Source: spec section 5, step 2.
    """
    _check(x, weight, state, lengths, cu_seqlens)
    batch, tokens, channels = x.shape
    before = weight.shape[1] - 1
    if cu_seqlens is not None:
        return _packed(x, weight, state, cu_seqlens, activation)
    y = _ShortConv.apply(x, weight, state, activation)
    if lengths is None and tokens >= before:
        return y, x[:, tokens - before :].clone()
    first = x.new_zeros(batch, before, channels) if state is None else state.to(x.dtype)
    inputs = torch.cat([first, x], 1)  # [B, W-1+T, D]
    if lengths is None:
        return y, inputs[:, tokens:].clone()
    last = lengths.long()[:, None] + torch.arange(before, device=x.device)
    return y, inputs.gather(1, last[..., None].expand(-1, -1, channels))


def _packed(
    x: Tensor, weight: Tensor, state: Tensor | None, cu_seqlens: Tensor, activation: bool
) -> tuple[Tensor, Tensor]:
    batch, tokens, channels = x.shape
    before = weight.shape[1] - 1
    read_offsets(cu_seqlens, batch, tokens)
    offsets = cu_seqlens.long()
    segments = offsets.shape[0] - 1
    index = torch.arange(batch * tokens, device=x.device)
    segment = torch.bucketize(index, offsets[1:], right=True)
    target = index + (segment + 1) * before
    slots = torch.arange(before, device=x.device)
    ordinal = torch.arange(segments, device=x.device)
    laid = x.new_zeros(batch * tokens + segments * before, channels)
    laid = laid.index_copy(0, target, x.flatten(0, 1))
    if state is not None:
        front = (offsets[:-1] + ordinal * before)[:, None] + slots  # [S, W-1]
        laid = laid.index_copy(0, front.flatten(), state.to(x.dtype).flatten(0, 1))
    y = _ShortConv.apply(laid[None], weight, None, activation)[0]
    back = (offsets[1:] + ordinal * before)[:, None] + slots
    last = laid.index_select(0, back.flatten()).view(segments, before, channels)
    return y.index_select(0, target).view_as(x), last


def _check(
    x: Tensor,
    weight: Tensor,
    state: Tensor | None,
    lengths: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    if x.ndim != 3 or weight.ndim != 2 or weight.shape[0] != x.shape[2]:
        raise ShapeError(
            f"x must be [B, T, D] and weight [D, W]; got {list(x.shape)} and {list(weight.shape)}; "
            "drop the middle axis of a stored weight [D, 1, W]"
        )
    if lengths is not None and cu_seqlens is not None:
        raise ShapeError(
            "lengths and cu_seqlens must not be given together: they would place boundaries twice; "
            "pass only one of them"
        )
    rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if state is not None and state.shape != (rows, weight.shape[1] - 1, x.shape[2]):
        raise ShapeError(
            f"state must be {[rows, weight.shape[1] - 1, x.shape[2]]}, the last W - 1 inputs of each "
            f"sequence; got {list(state.shape)}; pass the state that this layer returned"
        )
    if lengths is not None and lengths.shape != x.shape[:1]:
        raise ShapeError(
            f"lengths must be [{x.shape[0]}], one per row of x; got {list(lengths.shape)}; pass one each"
        )


def _convolve(x: Tensor, taps: Tensor, state: Tensor | None) -> Tensor:
    """sum_s taps[W-1-s] * x_{t-s}; taps is [W, D]."""
    tokens, before = x.shape[1], taps.shape[0] - 1
    y = x * taps[before]
    for s in range(1, before + 1):
        tap = taps[before - s]
        if s < tokens:
            y[:, s:].addcmul_(x[:, : tokens - s], tap)
        if state is not None:
            n = min(s, tokens)
            y[:, :n].addcmul_(state[:, before - s : before - s + n], tap)
    return y


class _ShortConv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, state: Tensor | None, activation: bool
    ) -> Tensor:
        dtype = torch.promote_types(x.dtype, weight.dtype)
        inputs = x.to(dtype)
        past = None if state is None else state.to(dtype)
        y = _convolve(inputs, weight.t().to(dtype), past)
        ctx.activation = activation
        ctx.save_for_backward(x, weight, state, y if activation else None)
        return (silu(y) if activation else y).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, state, y = ctx.saved_tensors
        dtype = torch.promote_types(x.dtype, weight.dtype)
        dy, inputs = dy.to(dtype), x.to(dtype)
        if ctx.activation:
            dy = torch.ops.aten.silu_backward(dy, y)
        past = None if state is None else state.to(dtype)
        taps = weight.t().to(dtype)
        tokens, before = x.shape[1], taps.shape[0] - 1
        dx = dtaps = dstate = None
        if ctx.needs_input_grad[0]:
            dx = dy * taps[before]
            for s in range(1, min(before, tokens - 1) + 1):
                dx[:, : tokens - s].addcmul_(dy[:, s:], taps[before - s])
            dx = dx.to(x.dtype)
        if ctx.needs_input_grad[1]:
            dtaps = torch.zeros_like(taps)
            for s in range(before + 1):
                if s < tokens:
                    dtaps[before - s] = (dy[:, s:] * inputs[:, : tokens - s]).sum((0, 1))
                if past is not None and s:
                    n = min(s, tokens)
                    dtaps[before - s] += (dy[:, :n] * past[:, before - s : before - s + n]).sum((0, 1))
        if state is not None and ctx.needs_input_grad[2]:
            dstate = torch.zeros_like(state, dtype=dtype)
            for s in range(1, before + 1):
                n = min(s, tokens)
                dstate[:, before - s : before - s + n].addcmul_(dy[:, :n], taps[before - s])
            dstate = dstate.to(state.dtype)
        dweight = None if dtaps is None else dtaps.t().to(weight.dtype)
        return dx, dweight, dstate, None

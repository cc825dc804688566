"""The short convolution by a library convolution over `[B, W-1+T, D]`, with no transpose.

    y_t = silu( w_3 x_t + w_2 x_{t-1} + w_1 x_{t-2} + w_0 x_{t-3} )       (depthwise; W = 4)

Rows `[B, T, D]` are the memory of an image `[B, D, 1, T]` with the channels last, which the library
convolves as it lies. In front of each row go the W - 1 inputs of its state; a
packed batch has such a front before every segment, so that no boundary needs a test.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, silu

from interlace.errors import ShapeError
from interlace.ops.delta_rule.packing import read_offsets
from interlace.shapes import Float, Int, Tensor

__all__ = ["check_conv", "short_conv"]

# Tokens whose products stay in a core's cache at common widths.
BLOCK = 256


def short_conv(
    x: Float[Tensor, "B T D"],
    weight: Float[Tensor, "D W"],
    *,
    state: Float[Tensor, "S W-1 D"] | None = None,
    lengths: Int[Tensor, "B"] | None = None,
    cu_seqlens: Int[Tensor, "S_plus_1"] | None = None,
    activation: bool = True,
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "S W-1 D"]]:
    """Depthwise causal convolution over time, then SiLU.

    Args:
        x: inputs, any float dtype.
        weight: taps per channel; tap W-1 multiplies the current token. A weight that is wider than
            `x` (float32 beside bf16) is used as it is, and the output has the dtype of `x`.
        state: the last W-1 inputs before each row, oldest first; zeros when None. When packed, one
            per segment (S segments); otherwise S is B.
        lengths: real tokens of each right-padded row; only the state depends on it.
        cu_seqlens: offsets of packed segments in the rows laid end to end.
        activation: apply SiLU.

    Returns:
        The outputs, and the last W-1 inputs of each row or segment (older ones come from `state`).
        Both are new tensors; nothing given is changed. No output depends on a later token, not by
        one bit.

    Raises:
        ShapeError: shapes that do not fit, or offsets that do not cover the rows.

    Source: spec section 5, step 2.
    """
    check_conv(x, weight, state, lengths, cu_seqlens)
    batch, tokens, channels = x.shape
    before = weight.shape[1] - 1
    if cu_seqlens is not None:
        return _packed(x, weight, state, cu_seqlens, activation)
    front = x.new_zeros(batch, before, channels) if state is None else state.to(x.dtype)
    inputs = torch.cat([front, x], 1)  # [B, W-1+T, D]
    y = _convolve(inputs, weight, activation)
    if lengths is None:
        return y, inputs[:, tokens:].clone()
    last = lengths.long()[:, None] + torch.arange(before, device=x.device)
    return y, inputs.gather(1, last[..., None].expand(-1, -1, channels))


def _convolve(inputs: Tensor, weight: Tensor, activation: bool) -> Tensor:
    """One output for each input behind the first W - 1, in the dtype of the inputs."""
    if inputs.shape[1] < weight.shape[1]:
        return inputs[:, :0]
    dtype = torch.promote_types(inputs.dtype, weight.dtype)
    y: Tensor = _Depthwise.apply(inputs.to(dtype), weight.to(dtype))  # type: ignore[no-untyped-call]
    return (silu(y) if activation else y).to(inputs.dtype)


class _Depthwise(torch.autograd.Function):
    """The library's convolution and gradient of its input, and our own gradient of the taps.

    The library's gradient of the taps takes longer than all the rest, many times so in bf16.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        y = conv2d(_image(inputs), weight[:, None, None], groups=weight.shape[0])
        return y.squeeze(2).mT  # [B, T, D]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        dinputs = dweight = None
        if ctx.needs_input_grad[0]:
            dy = dy.contiguous()
            options = ([1, 1], [0, 0], [1, 1], False, [0, 0], weight.shape[0])
            image = torch.ops.aten.convolution_backward(
                _image(dy),
                _image(inputs),
                weight[:, None, None],
                None,
                *options,
                [True, False, False],
            )[0]
            dinputs = image.squeeze(2).mT
        if ctx.needs_input_grad[1]:
            dweight = _taps_gradient(dy, inputs, weight)
        return dinputs, dweight


def _image(rows: Tensor) -> Tensor:
    """Rows `[B, T, D]` as `[B, D, 1, T]`, the same memory."""
    return rows.mT.unsqueeze(2)


def _taps_gradient(dy: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
    """Sum over rows and tokens of dy_t * x_{t-s}, tap by tap, in float32 and in blocks."""
    width, tokens = weight.shape[1], dy.shape[1]
    wide = torch.promote_types(weight.dtype, torch.float32)
    total = torch.zeros(width, weight.shape[0], dtype=wide, device=dy.device)
    # the taps share a block while it is in the cache; a GPU would rather have few large products
    size = BLOCK if dy.device.type == "cpu" else tokens
    for start in range(0, tokens, size):
        end = min(start + size, tokens)
        for grad, seen in zip(dy[:, start:end], inputs[:, start : end + width - 1], strict=True):
            grad, seen = grad.to(wide), seen.to(wide)
            for tap in range(width):
                total[tap] += (grad * seen[tap : tap + end - start]).sum(0)
    return total.t().to(weight.dtype)


def _packed(
    x: Tensor, weight: Tensor, state: Tensor | None, cu_seqlens: Tensor, activation: bool
) -> tuple[Tensor, Tensor]:
    batch, tokens, channels = x.shape
    before = weight.shape[1] - 1
    read_offsets(cu_seqlens, batch, tokens)
    offsets = cu_seqlens.long()
    segments = offsets.shape[0] - 1
    ordinal = torch.arange(segments, device=x.device)
    slots = torch.arange(before, device=x.device)
    token = torch.arange(batch * tokens, device=x.device)
    # a token has moved by the fronts of its own segment and of those before it
    target = token + (torch.bucketize(token, offsets[1:], right=True) + 1) * before
    inputs = x.new_zeros(batch * tokens + segments * before, channels)
    inputs = inputs.index_copy(0, target, x.flatten(0, 1))
    if state is not None:
        front = (offsets[:-1] + ordinal * before)[:, None] + slots  # [S, W-1]
        inputs = inputs.index_copy(0, front.flatten(), state.to(x.dtype).flatten(0, 1))
    y = _convolve(inputs[None], weight, activation)[0]
    last = (offsets[1:] + ordinal * before)[:, None] + slots
    windows = inputs.index_select(0, last.flatten()).view(segments, before, channels)
    return y.index_select(0, target - before).view_as(x), windows


def check_conv(
    x: Tensor,
    weight: Tensor,
    state: Tensor | None,
    lengths: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Refuse what does not fit together.

    Raises:
        ShapeError: what must hold, and what came.
    """
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
            f"state must be {[rows, weight.shape[1] - 1, x.shape[2]]}, the last W - 1 inputs of "
            f"each sequence; got {list(state.shape)}; pass the state that this layer returned"
        )
    if lengths is not None and lengths.shape != x.shape[:1]:
        raise ShapeError(
            f"lengths must be [{x.shape[0]}], one per row of x; got {list(lengths.shape)}; pass "
            "one each"
        )

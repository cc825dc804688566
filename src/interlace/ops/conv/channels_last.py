"""The short convolution by a library convolution over `[B, W-1+T, D]`, with no transpose.

    y_t = silu( w_3 x_t + w_2 x_{t-1} + w_1 x_{t-2} + w_0 x_{t-3} )       (depthwise; W = 4)

Rows `[B, T, D]` are the memory of an image `[B, D, 1, T]` with the channels last, which the library
convolves and differentiates as it lies. In front of each row go the W - 1 inputs of its state; a
packed batch has such a front before every segment, so that no boundary needs a test.
"""

import torch
from torch.nn.functional import conv2d, silu

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
    _check(x, weight, state, lengths, cu_seqlens)
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
    width = weight.shape[1]
    if inputs.shape[1] < width:
        return inputs[:, :0]
    dtype = torch.promote_types(inputs.dtype, weight.dtype)
    image = inputs.to(dtype).mT.unsqueeze(2)  # [B, D, 1, W-1+T]
    y = conv2d(image, weight.to(dtype)[:, None, None], groups=weight.shape[0])
    y = y.squeeze(2).mT  # [B, T, D]
    return (silu(y) if activation else y).to(inputs.dtype)


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
            f"state must be {[rows, weight.shape[1] - 1, x.shape[2]]}, the last W - 1 inputs of "
            f"each sequence; got {list(state.shape)}; pass the state that this layer returned"
        )
    if lengths is not None and lengths.shape != x.shape[:1]:
        raise ShapeError(
            f"lengths must be [{x.shape[0]}], one per row of x; got {list(lengths.shape)}; pass "
            "one each"
        )

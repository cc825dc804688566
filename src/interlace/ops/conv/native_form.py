"""Short convolutions of few tokens in the native core, those of several inputs in one call.

`csrc/kernels/kda_around.cpp`. Channels are lanes; the last W inputs of a channel stay in registers.
"""

from collections.abc import Sequence

import torch

from interlace.ops.native import core, reason
from interlace.shapes import Float, Tensor

__all__ = ["refusal", "short_convs_native"]

_WIDEST, _MOST = 16, 4  # taps; inputs of one call


def refusal(
    xs: Sequence[Tensor], weights: Sequence[Tensor], states: Sequence[Tensor]
) -> str | None:
    """Why the native core cannot convolve these, or None."""
    if any(x.dtype != torch.bfloat16 for x in (*xs, *states)):
        return "it takes inputs and windows in bfloat16"
    if any(w.dtype not in (torch.bfloat16, torch.float32) for w in weights):
        return "it takes taps in bfloat16 or float32"
    if len(xs) > _MOST or weights[0].shape[1] > _WIDEST:
        return f"it takes at most {_MOST} inputs and {_WIDEST} taps"
    if any(x.stride(-1) != 1 for x in xs):
        return "the last axis of an input must be contiguous"
    if not all(x.is_contiguous() for x in (*weights, *states)):
        return "taps and windows must be contiguous"
    return reason(*xs, *weights, *states)


def short_convs_native(
    xs: Sequence[Float[Tensor, "B T _"]],
    weights: Sequence[Float[Tensor, "_ W"]],
    states: Sequence[Float[Tensor, "B W-1 _"]],
) -> tuple[list[Tensor], list[Tensor]]:
    """SiLU of each convolution, and the window of each after the call, in bfloat16."""
    outs = [torch.empty(x.shape, dtype=x.dtype) for x in xs]
    windows = [torch.empty_like(state) for state in states]
    plain = [[t.detach() for t in some] for some in (xs, weights, states)]
    core().convolve(*plain, outs, windows, True)
    return outs, windows

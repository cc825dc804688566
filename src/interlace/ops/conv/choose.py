"""Several convolutions at once: in the native core where it takes them, else one by one."""

from collections.abc import Sequence
from typing import NamedTuple

from interlace.ops.conv.channels_last import check_conv, short_conv
from interlace.ops.conv.native_form import refusal, short_convs_native
from interlace.ops.dispatch import Backend, choose
from interlace.shapes import Float, Tensor

__all__ = ["CONV_BACKENDS", "ConvCall", "short_convs"]


class ConvCall(NamedTuple):
    """What the choice looks at."""

    native: str | None = "the tensors are not known"
    """Why the native core cannot take the tensors, or None."""


def _torch(
    xs: Sequence[Tensor], weights: Sequence[Tensor], states: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    pairs = [short_conv(x, w, state=s) for x, w, s in zip(xs, weights, states, strict=True)]
    return [y for y, _ in pairs], [window for _, window in pairs]


CONV_BACKENDS = (
    Backend(name="conv.native", refuses=lambda call: call.native, run=short_convs_native),
    Backend(name="conv.channels_last", refuses=lambda _: None, run=_torch),
)
"""The ways of `short_convs`, in order of preference."""


def short_convs(
    xs: Sequence[Float[Tensor, "B T _"]],
    weights: Sequence[Float[Tensor, "_ W"]],
    states: Sequence[Float[Tensor, "B W-1 _"]],
    *,
    backend: str = "auto",
) -> tuple[list[Float[Tensor, "B T _"]], list[Float[Tensor, "B W-1 _"]]]:
    """`short_conv` of each of `xs` with its taps and state; D may differ, W may not.

    Returns:
        The outputs, and the last W - 1 inputs of each; new tensors all.

    Raises:
        ShapeError: shapes that do not fit.
        BackendUnavailable: no way has this name, or the named one cannot take the call.
    """
    for x, w, s in zip(xs, weights, states, strict=True):
        check_conv(x, w, s, None, None)
    way = choose(CONV_BACKENDS, ConvCall(refusal(xs, weights, states)), backend)
    outs, windows = way.run(xs, weights, states)
    return outs, windows

"""Norms by the native core where it can take them, in one pass and without a gradient; else torch.

The torch forms and what they promise: `fused`. The core rounds where they round.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch

from interlace.ops.dispatch import Backend, choose
from interlace.ops.native import core, reason
from interlace.ops.norm import fused
from interlace.shapes import Float, Tensor

__all__ = ["NORM_BACKENDS", "NormCall", "gated_rms_norm", "rms_norm"]

_WIDTHS = (torch.bfloat16, torch.float32)


class NormCall(NamedTuple):
    """What the choice looks at."""

    native: str | None = "the tensors are not known"
    """Why the native core cannot take the tensors, or None."""


def _native_rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    fused.check_weight(x, weight)
    # under no_grad a tensor may still ask for gradients, which the core does not take
    x = x.detach() if x.requires_grad else x
    x = x if x.is_contiguous() else x.contiguous()
    out = torch.empty_like(x)
    core().rms_norm(x, weight.detach() if weight.requires_grad else weight, out, eps)
    return out


def _native_gated(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    fused.check_weight(x, weight)
    gates = _rows(gate)
    out = torch.empty_like(gates)
    core().gated_norm(_rows(x), gates, weight.detach(), out, eps)
    return out.view(gate.shape)


def _refuses_native(call: NormCall) -> str | None:
    return call.native


def _ways(native: Callable[..., Tensor], torch_form: Callable[..., Tensor]) -> tuple[Backend, ...]:
    return (
        Backend(name="norm.native", refuses=_refuses_native, run=native),
        Backend(name="norm.fused", refuses=lambda _: None, run=torch_form),
    )


NORM_BACKENDS = _ways(_native_rms, fused.rms_norm)
"""The ways of `rms_norm`, in order of preference; those of `gated_rms_norm` have the same names."""
_GATED = _ways(_native_gated, fused.gated_rms_norm)


def rms_norm(
    x: Float[Tensor, "*rows D"], weight: Float[Tensor, "D"], eps: float, *, backend: str = "auto"
) -> Float[Tensor, "*rows D"]:
    """RMSNorm over the last axis: normalise in float32, cast back, then multiply by the weight.

    Args:
        x: any float dtype.
        weight: in its own dtype; the product follows torch's promotion.
        eps: added to the mean of the squares, inside the root.
        backend: the name of one of `NORM_BACKENDS`, or "auto".

    Returns:
        Dtype of `x` times dtype of `weight`: x's own where they agree.

    Raises:
        ShapeError: a weight of another width.
        BackendUnavailable: no way has this name, or the named one cannot take the call.

    Source: spec section 3.
    """
    refused = None
    if x.dtype != weight.dtype or x.dtype not in _WIDTHS:
        refused = "it takes x and weight both in bfloat16 or both in float32"
    way = choose(NORM_BACKENDS, NormCall(refused or _refusal(x, weight)), backend)
    out: Tensor = way.run(x, weight, eps)
    return out


def gated_rms_norm(
    x: Float[Tensor, "*rows D"],
    gate: Float[Tensor, "*rows D"],
    weight: Float[Tensor, "D"],
    eps: float,
    *,
    backend: str = "auto",
) -> Float[Tensor, "*rows D"]:
    """RMSNorm times weight times sigmoid(gate), all in float32, with one cast at the end.

    Args:
        x: output of the delta rule, per head; any float dtype.
        gate: before the sigmoid.
        weight: shared by all heads.
        eps: added to the mean of the squares, inside the root.
        backend: as for `rms_norm`.

    Returns:
        Dtype of `gate`, which is that of the activations (`x` may come in float32).

    Raises:
        ShapeError, BackendUnavailable: as `rms_norm`.

    Source: spec section 5, step 9.
    """
    refused = None
    if gate.dtype != torch.bfloat16 or x.dtype not in _WIDTHS or weight.dtype not in _WIDTHS:
        refused = "it takes a gate in bfloat16, x and weight in bfloat16 or float32"
    elif x.shape != gate.shape:
        refused = "it takes x and gate of one shape"
    way = choose(_GATED, NormCall(refused or _refusal(x, gate, weight)), backend)
    out: Tensor = way.run(x, gate, weight, eps)
    return out


def _refusal(*tensors: Tensor) -> str | None:
    if not tensors[-1].is_contiguous():
        return "the weight must be contiguous"
    return reason(*tensors)


def _rows(x: Tensor) -> Tensor:
    return x.detach().reshape(prod(x.shape[:-1]), x.shape[-1]).contiguous()

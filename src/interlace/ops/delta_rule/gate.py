"""The decay of Kimi Delta Attention: from logits to the logarithm of a factor per key channel.

Two published forms, both in float32 whatever the dtype of the logits (spec section 5, step 6):

    softplus form   g = -exp(A_log) * softplus(z + dt_bias)             (-inf, 0]
    bounded form    g = L * sigmoid(exp(A_log) * (z + dt_bias))         (L, 0), L < 0

The bounded form is a function of its own, not a clamp of the first (K3 report, equation 5).
Out of scope: the projections that make `z`.
"""

from math import prod
from typing import NamedTuple

import torch
import torch.nn.functional as F

from interlace.ops.dispatch import Backend, choose
from interlace.ops.native import core, reason
from interlace.shapes import Float, Tensor

__all__ = ["GATE_BACKENDS", "GateCall", "kda_gate", "kda_gates"]


def kda_gate(
    z: Float[Tensor, "B T H K"],
    A_log: Float[Tensor, "H"],
    dt_bias: Float[Tensor, "H K"],
    lower_bound: float | None = None,
) -> Float[Tensor, "B T H K"]:
    """Log decay per key channel, float32 (float64 when `z` is).

    Args:
        z: decay logits, any float dtype; the bias is added after the cast.
        A_log: logarithm of the rate, one per head.
        dt_bias: bias of the logits.
        lower_bound: None for the softplus form; a negative number for the bounded form
            (K3 report, equation 5, where it is -5).

    Returns:
        g <= 0; the state's rows are multiplied by exp(g).
    """
    dtype = torch.promote_types(z.dtype, torch.float32)
    logits = z.to(dtype) + dt_bias.to(dtype)
    rate = A_log.to(dtype).exp()[:, None]
    if lower_bound is None:
        return -rate * F.softplus(logits, threshold=20.0)  # the identity above 20
    return lower_bound * torch.sigmoid(rate * logits)


class GateCall(NamedTuple):
    """What the choice looks at."""

    native: str | None = "the tensors are not known"
    """Why the native core cannot take the tensors, or None."""


def _refusal(z: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor) -> str | None:
    if z.dtype != torch.bfloat16 or b.dtype != torch.bfloat16:
        return "it takes logits in bfloat16"
    if A_log.dtype != torch.float32 or dt_bias.dtype != torch.float32:
        return "it takes A_log and dt_bias in float32"
    if not all(x.is_contiguous() for x in (z, b, A_log, dt_bias)):
        return "its tensors must be contiguous"
    return reason(z, b, A_log, dt_bias)


def _native(
    z: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None
) -> tuple[Tensor, Tensor]:
    heads, width = dt_bias.shape
    rows = prod(b.shape[:-1])
    g = torch.empty(rows, heads * width)
    beta = torch.empty(rows, heads)
    core().decay(
        z.detach().view(rows, heads * width),
        b.detach().view(rows, heads),
        A_log.detach(),
        dt_bias.detach().view(-1),
        g,
        beta,
        0.0 if lower_bound is None else lower_bound,
    )
    return g.view(z.shape), beta.view(b.shape)


def _torch(
    z: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: float | None
) -> tuple[Tensor, Tensor]:
    beta = b.to(torch.promote_types(b.dtype, torch.float32)).sigmoid()
    return kda_gate(z, A_log, dt_bias, lower_bound), beta


GATE_BACKENDS = (
    Backend(name="gate.native", refuses=lambda call: call.native, run=_native),
    Backend(name="gate.torch", refuses=lambda _: None, run=_torch),
)
"""The ways of `kda_gates`, in order of preference."""


def kda_gates(
    z: Float[Tensor, "B T H K"],
    b: Float[Tensor, "B T H"],
    A_log: Float[Tensor, "H"],
    dt_bias: Float[Tensor, "H K"],
    lower_bound: float | None = None,
    *,
    backend: str = "auto",
) -> tuple[Float[Tensor, "B T H K"], Float[Tensor, "B T H"]]:
    """Log decay as `kda_gate`, and beta = sigmoid(b), both float32 (spec section 5, step 7).

    Raises:
        BackendUnavailable: no way has this name, or the named one cannot take the call.
    """
    way = choose(GATE_BACKENDS, GateCall(_refusal(z, b, A_log, dt_bias)), backend)
    g, beta = way.run(z, b, A_log, dt_bias, lower_bound)
    return g, beta

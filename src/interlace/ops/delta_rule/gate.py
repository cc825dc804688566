"""The decay of Kimi Delta Attention: from logits to the logarithm of a factor per key channel.

Two published forms, both in float32 whatever the dtype of the logits (spec section 5, step 6):

    softplus form   g = -exp(A_log) * softplus(z + dt_bias)             (-inf, 0]
    bounded form    g = L * sigmoid(exp(A_log) * (z + dt_bias))         (L, 0), L < 0

The bounded form is a function of its own, not a clamp of the first (K3 report, equation 5).
Out of scope: the projections that make `z`.
"""

import torch
import torch.nn.functional as F

from interlace.shapes import Float, Tensor


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

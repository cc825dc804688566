"""Which way of attending to latents takes a call: absorbed for few queries, else rebuilt.

The native core has both, for bf16 on a CPU where nothing asks for a gradient.
"""

from collections.abc import Callable
from typing import NamedTuple

from interlace.ops.attention.absorbed import attention_absorbed
from interlace.ops.attention.native_form import (
    attention_native,
    attention_native_rebuilt,
    refusal,
)
from interlace.ops.attention.rebuilt import attention_rebuilt
from interlace.ops.dispatch import Backend, choose
from interlace.shapes import Float, Int, Tensor

__all__ = ["LATENT_BACKENDS", "LatentCall", "latent_attention"]

# Queries of one call from which rebuilding is the faster way (README: measured).
CROSSOVER = 48
NATIVE_CROSSOVER = 80


class LatentCall(NamedTuple):
    """What the choice looks at."""

    tokens: int
    """Queries of the call, T."""
    native: str | None = "the tensors are not known"
    """Why the native core cannot take the tensors, or None."""


def _below(crossover: int) -> Callable[[LatentCall], str | None]:
    def passes(call: LatentCall) -> str | None:
        if call.tokens < crossover:
            return None
        return f"from {crossover} queries on, rebuilding is faster; here are {call.tokens}"

    return passes


def _willing(_: LatentCall) -> str | None:
    return None


def _refuses_native(call: LatentCall) -> str | None:
    return call.native


LATENT_BACKENDS = (
    Backend(
        name="attention.native",
        refuses=_refuses_native,
        passes=_below(NATIVE_CROSSOVER),
        run=attention_native,
    ),
    Backend(
        name="attention.native_rebuilt",
        refuses=_refuses_native,
        run=attention_native_rebuilt,
    ),
    Backend(
        name="attention.absorbed",
        refuses=_willing,
        passes=_below(CROSSOVER),
        run=attention_absorbed,
    ),
    Backend(name="attention.rebuilt", refuses=_willing, run=attention_rebuilt),
)
"""The ways of `latent_attention`, in order of preference."""


def latent_attention(
    q: Float[Tensor, "B T H K"],
    latent: Float[Tensor, "B M latent"],
    w_uk: Float[Tensor, "H N R"],
    w_uv: Float[Tensor, "H V R"],
    *,
    lengths: Int[Tensor, "B"] | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Float[Tensor, "B T H V"]:
    """Causal attention against the latent, by the way that suits the call.

    Arguments, dtypes and errors as for `attention_absorbed`, and `backend`, the name of one of
    `LATENT_BACKENDS` or "auto".

    Raises:
        BackendUnavailable: no way has this name.
    """
    call = LatentCall(q.shape[1], refusal(q, latent, w_uk, w_uv))
    way = choose(LATENT_BACKENDS, call, backend)
    out = way.run(q, latent, w_uk, w_uv, lengths=lengths, scale=scale)
    assert isinstance(out, Tensor)
    return out

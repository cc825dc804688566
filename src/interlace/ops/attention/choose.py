"""Which way of attending to latents takes a call: absorbed for few queries, else rebuilt."""

from typing import NamedTuple

from interlace.ops.attention.absorbed import attention_absorbed
from interlace.ops.attention.rebuilt import attention_rebuilt
from interlace.ops.dispatch import Backend, choose
from interlace.shapes import Float, Int, Tensor

__all__ = ["LATENT_BACKENDS", "LatentCall", "latent_attention"]

# Queries of one call from which rebuilding is the faster way (README: measured).
CROSSOVER = 48


class LatentCall(NamedTuple):
    """What the choice looks at."""

    tokens: int
    """Queries of the call, T."""


def _passes_absorbed(call: LatentCall) -> str | None:
    if call.tokens >= CROSSOVER:
        return f"from {CROSSOVER} queries on, rebuilding is faster; here are {call.tokens}"
    return None


def _willing(_: LatentCall) -> str | None:
    return None


LATENT_BACKENDS = (
    Backend(
        name="attention.absorbed",
        refuses=_willing,
        passes=_passes_absorbed,
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
    way = choose(LATENT_BACKENDS, LatentCall(q.shape[1]), backend)
    out = way.run(q, latent, w_uk, w_uv, lengths=lengths, scale=scale)
    assert isinstance(out, Tensor)
    return out

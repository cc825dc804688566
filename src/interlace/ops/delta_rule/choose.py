"""Which form of the delta rule takes a call: the loop for a few tokens, else the chunked form."""

from typing import Any, NamedTuple

import torch

from interlace.ops.delta_rule.chunked import CHUNK, kda_chunk
from interlace.ops.delta_rule.recurrent import kda_recurrent
from interlace.ops.dispatch import Backend, choose
from interlace.shapes import Float, Int, Tensor

__all__ = ["KDA_BACKENDS", "KDACall", "kda"]

# Up to here the loop over tokens costs less than one padded tile of the chunked form.
FEW_TOKENS = 8


class KDACall(NamedTuple):
    """What the choice looks at."""

    tokens: int
    """T of the call."""
    learns: bool = False
    """Whether a gradient will be asked for."""
    packed: bool = False
    """Whether rows hold several sequences."""


def _passes_recurrent(call: KDACall) -> str | None:
    if call.learns:
        return "chunks have a backward of their own, which keeps one state per chunk"
    if call.packed:
        return "chunks run packed sequences side by side"
    if call.tokens > FEW_TOKENS:
        return f"above {FEW_TOKENS} tokens chunks are faster; here are {call.tokens}"
    return None


def _willing(_: KDACall) -> str | None:
    return None


def _recurrent(
    *tensors: Any,
    chunk: int = CHUNK,
    min_decay: float | None = None,
    return_state: bool = True,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    out, last = kda_recurrent(*tensors, **options)
    return out, (last if return_state else None)


KDA_BACKENDS = (
    Backend(name="kda.recurrent", refuses=_willing, passes=_passes_recurrent, run=_recurrent),
    Backend(name="kda.chunk", refuses=_willing, run=kda_chunk),
)
"""The ways of `kda`, in order of preference."""


def kda(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None,
    beta: Float[Tensor, "B T H"],
    *,
    state: Float[Tensor, "S H K V"] | None = None,
    scale: float | None = None,
    lengths: Int[Tensor, "B"] | None = None,
    cu_seqlens: Int[Tensor, "offsets"] | None = None,
    chunk: int = CHUNK,
    min_decay: float | None = None,
    return_state: bool = True,
    backend: str = "auto",
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "S H K V"] | None]:
    """Gated delta rule by the form that suits the call.

    Arguments and result as for `kda_chunk` (the loop has no use for `chunk` and `min_decay`), and
    `backend`, the name of one of `KDA_BACKENDS` or "auto".

    Raises:
        BackendUnavailable: no way has this name.
    """
    tensors = (q, k, v, g, beta, state)
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    call = KDACall(q.shape[1], learns, cu_seqlens is not None)
    out: tuple[Tensor, Tensor | None] = choose(KDA_BACKENDS, call, backend).run(
        q,
        k,
        v,
        g,
        beta,
        state=state,
        scale=scale,
        lengths=lengths,
        cu_seqlens=cu_seqlens,
        chunk=chunk,
        min_decay=min_decay,
        return_state=return_state,
    )
    return out

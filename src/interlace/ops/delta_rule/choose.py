"""Which form of the delta rule takes a call.

Without a gradient on a CPU a native one: with bf16 products for many tokens, else in float32.
Otherwise torch's loop for a few tokens and torch's chunks for more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from interlace.ops.delta_rule.chunked import CHUNK, kda_chunk
from interlace.ops.delta_rule.native_form import (
    has_bf16_products,
    kda_native_chunk,
    kda_native_step,
    refusal,
)
from interlace.ops.delta_rule.recurrent import kda_recurrent
from interlace.ops.dispatch import Backend, choose
from interlace.ops.norm import l2norm
from interlace.shapes import Float, Int, Tensor

__all__ = ["KDA_BACKENDS", "KDACall", "kda"]

# Up to here the loop over tokens costs less than one padded tile of the chunked form.
FEW_TOKENS = 8

# From here on the native core may round products to bf16; a short call keeps float32 for little.
MANY_TOKENS = 64


class KDACall(NamedTuple):
    """What the choice looks at."""

    tokens: int
    """T of the call."""
    learns: bool = False
    """Whether a gradient will be asked for."""
    packed: bool = False
    """Whether rows hold several sequences."""
    native: str | None = "the tensors are not known"
    """Why the native core cannot take the tensors, or None."""
    narrow: bool = True
    """Whether q, k and v are bfloat16."""


def _refuses_native(call: KDACall) -> str | None:
    if call.learns:
        return "the native core has no backward, and a gradient is asked for"
    return call.native


def _refuses_native_chunk(call: KDACall) -> str | None:
    if not call.narrow:
        return "its products are of bfloat16, and q, k and v are not"
    return _refuses_native(call)


def _passes_native_chunk(call: KDACall) -> str | None:
    if not has_bf16_products():
        return "this processor has no products of bfloat16; in float32 it is as fast"
    if call.tokens < MANY_TOKENS:
        return f"below {MANY_TOKENS} tokens float32 costs little; here are {call.tokens}"
    return None


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


def _without_chunks(run: Callable[..., Any]) -> Callable[..., Any]:
    """A way that has no use for what only chunks need, and always returns the state."""

    def plain(
        *tensors: Any,
        chunk: int = CHUNK,
        min_decay: float | None = None,
        return_state: bool = True,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        out, last = run(*tensors, **options)
        return out, (last if return_state else None)

    return plain


def _of_unit_length(run: Callable[..., Any]) -> Callable[..., Any]:
    """A way that wants q and k of unit length, as one that brings them there when asked."""

    def with_norm(
        q: Tensor,
        k: Tensor,
        *tensors: Any,
        unit_eps: float | None = None,
        overwrite: bool = False,
        **options: Any,
    ) -> Any:
        if unit_eps is not None:
            q, k = l2norm(q, unit_eps), l2norm(k, unit_eps)
        return run(q, k, *tensors, **options)

    return with_norm


KDA_BACKENDS = (
    Backend(
        name="kda.native_chunk",
        refuses=_refuses_native_chunk,
        passes=_passes_native_chunk,
        run=_without_chunks(kda_native_chunk),
    ),
    Backend(name="kda.native_step", refuses=_refuses_native, run=_without_chunks(kda_native_step)),
    Backend(
        name="kda.recurrent",
        refuses=_willing,
        passes=_passes_recurrent,
        run=_of_unit_length(_without_chunks(kda_recurrent)),
    ),
    Backend(name="kda.chunk", refuses=_willing, run=_of_unit_length(kda_chunk)),
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
    unit_eps: float | None = None,
    overwrite: bool = False,
    backend: str = "auto",
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "S H K V"] | None]:
    """Gated delta rule by the form that suits the call.

    Arguments and result as for `kda_chunk` (only chunks have a use for `chunk` and `min_decay`),
    and three more. `unit_eps`: q and k are brought to unit length first, with this inside the root
    of the sum of squares (`l2norm`); None: they are already. `overwrite`: the caller has no further
    use for `state`, and a way may keep the new state in its memory; the native ones do. `backend`:
    the name of one of `KDA_BACKENDS`, or "auto".

    Raises:
        BackendUnavailable: no way has this name.
    """
    tensors = (q, k, v, g, beta, state)
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    native = refusal(q, k, v, g, beta, state)
    narrow = q.dtype == torch.bfloat16
    call = KDACall(q.shape[1], learns, cu_seqlens is not None, native, narrow)
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
        unit_eps=unit_eps,
        overwrite=overwrite,
    )
    return out

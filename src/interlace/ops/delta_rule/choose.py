"""Which form of the delta rule takes a call: the loop for a few tokens, else the chunked form."""

import torch

from interlace.ops.delta_rule.chunked import CHUNK, kda_chunk
from interlace.ops.delta_rule.recurrent import kda_recurrent
from interlace.shapes import Float, Int, Tensor

# Up to here the loop over tokens costs less than one padded tile of the chunked form.
FEW_TOKENS = 8


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
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "S H K V"] | None]:
    """Gated delta rule by the form that suits the call; arguments and result as for `kda_chunk`."""
    tensors = (q, k, v, g, beta, state)
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    if q.shape[1] <= FEW_TOKENS and not learns and cu_seqlens is None:
        out, last = kda_recurrent(q, k, v, g, beta, state=state, scale=scale, lengths=lengths)
        return out, (last if return_state else None)
    return kda_chunk(
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

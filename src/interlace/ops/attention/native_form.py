"""Attention against the latent in the native core: bf16 products, float32 sums.

attention_native           the steps of `absorbed`: csrc/kernels/mla_decode.cpp; few queries
attention_native_rebuilt   the steps of `rebuilt`: csrc/kernels/mla_prefill.cpp; many queries

Scores, softmax and sums are float32. Rounded to bf16 are the softmax's weights and, few queries,
the folded query, or, many queries, the rebuilt keys and values: each moves a result by about 2^-9
of its size, as much as a result rounded to bf16 moves anyway.
"""

import torch

from interlace.ops.attention.layout import check_latent
from interlace.ops.native import core, reason
from interlace.shapes import Float, Int, Tensor

__all__ = ["attention_native", "attention_native_rebuilt", "refusal"]


def refusal(*tensors: Tensor) -> str | None:
    """Why the native core cannot attend with these tensors (q, latent, weights), or None."""
    if any(tensor.dtype != torch.bfloat16 for tensor in tensors):
        got = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        return f"it takes bfloat16 q, latent and weights, got {got}"
    if any(tensor.stride(-1) != 1 for tensor in tensors):
        return "the last axis of q, latent and weights must be contiguous"
    return reason(*tensors)


def attention_native(
    q: Float[Tensor, "B T H K"],
    latent: Float[Tensor, "B M latent"],
    w_uk: Float[Tensor, "H N R"],
    w_uv: Float[Tensor, "H V R"],
    *,
    lengths: Int[Tensor, "B"] | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Float[Tensor, "B T H V"] | tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """As `attention_absorbed`, for bfloat16 tensors on the CPU; the results are float32.

    A row's result depends neither on its neighbours nor on the number of threads, to the bit.

    Raises:
        ShapeError: when the shapes do not fit together.
    """
    return _run("mla_decode", q, latent, w_uk, w_uv, lengths, scale, return_lse)


def attention_native_rebuilt(
    q: Float[Tensor, "B T H K"],
    latent: Float[Tensor, "B M latent"],
    w_uk: Float[Tensor, "H N R"],
    w_uv: Float[Tensor, "H V R"],
    *,
    lengths: Int[Tensor, "B"] | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Float[Tensor, "B T H V"] | tuple[Float[Tensor, "B T H V"], Float[Tensor, "B T H"]]:
    """As `attention_rebuilt`, for bfloat16 tensors on the CPU; the results are float32.

    A thread holds 256 keys and values of one head and the sums of the head's queries; memory does
    not grow with the latents. A row's result depends neither on its neighbours nor on the number
    of threads, to the bit.

    Raises:
        ShapeError: when the shapes do not fit together.
    """
    return _run("mla_prefill", q, latent, w_uk, w_uv, lengths, scale, return_lse)


def _run(
    kernel: str,
    q: Tensor,
    latent: Tensor,
    w_uk: Tensor,
    w_uv: Tensor,
    lengths: Tensor | None,
    scale: float | None,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    check_latent(q, latent, w_uk, w_uv, lengths)
    batch, tokens, heads, width = q.shape
    out = torch.empty(batch, tokens, heads, w_uv.shape[1])
    lse = torch.empty(batch, tokens, heads) if return_lse else None
    ends = None if lengths is None else lengths.detach().to(torch.int64).contiguous()
    scale = width**-0.5 if scale is None else scale
    # under no_grad a parameter may still ask for gradients, which the core does not take
    plain = (t.detach() for t in (q, latent, w_uk, w_uv))
    getattr(core(), kernel)(*plain, out, lse, ends, scale)
    return out if lse is None else (out, lse)

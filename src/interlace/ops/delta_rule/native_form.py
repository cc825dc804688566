"""The gated delta rule in the native core: a head's state stays in cache while tokens go by.

`kda_native_step` (`csrc/kernels/kda_step.cpp`) computes in float32, whatever the dtype of q, k and
v, over any number of tokens. `kda_native_chunk` (`csrc/kernels/kda_chunk.cpp`) multiplies bf16 by
bf16 and is the faster one for many tokens where the processor has such products. Padding and
packing are offsets there; nothing is copied for them. Bringing q and k to unit length can be part
of the call.
"""

import torch

from interlace.ops.delta_rule.packing import check_call, read_offsets
from interlace.ops.native import core, reason
from interlace.shapes import Float, Int, Tensor

__all__ = ["has_bf16_products", "kda_native_chunk", "kda_native_step", "refusal"]


def refusal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    state: Tensor | None,
) -> str | None:
    """Why the native core cannot take these tensors, or None."""
    if q.dtype not in (torch.bfloat16, torch.float32) or k.dtype != q.dtype or v.dtype != q.dtype:
        got = ", ".join(str(x.dtype).removeprefix("torch.") for x in (q, k, v))
        return f"it takes q, k and v all in bfloat16 or all in float32, got {got}"
    wide = [x for x in (g, beta, state) if x is not None]
    if any(x.dtype != torch.float32 for x in wide):
        got = ", ".join(str(x.dtype).removeprefix("torch.") for x in wide)
        return f"it takes g, beta and state in float32, got {got}"
    if any(x.stride(-1) != 1 for x in (q, k, v, beta) if x.shape[-1] > 1) or (
        g is not None and g.shape[-1] > 1 and g.stride(-1) != 1
    ):
        return "the last axis of q, k, v, g and beta must be contiguous"
    return reason(q, k, v, g, beta, state)


def kda_native_step(
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
    unit_eps: float | None = None,
    overwrite: bool = False,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "S H K V"]]:
    """Gated delta rule in float32 (Kimi Linear report, equation 1), on the CPU, without gradient.

    A row's result depends neither on its neighbours nor on the number of threads, to the bit.

    Args:
        q: queries, float32 or bfloat16, not yet scaled; of unit length, unless `unit_eps` is given.
        k: keys, as q.
        v: values, as q; the output has their dtype.
        g: logarithm of the decay per key channel, float32, at most 0; None for no decay.
        beta: writing strength, float32, in [0, 1].
        state: state before the first token of each row (of each segment when packed), float32;
            zeros when None.
        scale: factor on q; K**-0.5 when None.
        lengths: real tokens of each row; the rest is not read and its output is 0.
        cu_seqlens: offsets of packed segments in the rows laid end to end; one may be empty.
        unit_eps: q and k are brought to unit length first, this inside the root of the sum of
            squares; None: they are already.
        overwrite: the returned state lies in the memory of `state`, which is then lost; the state
            is otherwise not modified.

    Returns:
        Output, and the state after the last real token of each row or segment, float32.

    Raises:
        ShapeError: when shapes or offsets do not fit together.
    """
    options = (state, scale, lengths, cu_seqlens, unit_eps, overwrite)
    return _run("kda_step", (q, k, v, g, beta), *options)


def kda_native_chunk(
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
    unit_eps: float | None = None,
    overwrite: bool = False,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "S H K V"]]:
    """As `kda_native_step`, for bfloat16 q, k and v, with products of bfloat16 and float32 sums.

    Where the state is read, a copy of it and the decayed q and k are rounded to bfloat16; where it
    is written, the decayed k and what they write. The state itself is float32 throughout.

    Raises:
        ShapeError: when shapes or offsets do not fit together.
    """
    options = (state, scale, lengths, cu_seqlens, unit_eps, overwrite)
    return _run("kda_chunk", (q, k, v, g, beta), *options)


def has_bf16_products() -> bool:
    """Whether the instruction set in use multiplies bfloat16, and `kda_native_chunk` is faster."""
    return core() is not None and core().level() in ("avx512_bf16", "amx")


def _run(
    kernel: str,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor],
    state: Tensor | None,
    scale: float | None,
    lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    unit_eps: float | None,
    overwrite: bool,
) -> tuple[Tensor, Tensor]:
    q, _, v, _, _ = tensors
    check_call(*tensors, state, lengths, cu_seqlens)
    offsets = None
    if cu_seqlens is not None:
        offsets = torch.tensor(read_offsets(cu_seqlens, q.shape[0], q.shape[1]))
    rows = q.shape[0] if offsets is None else offsets.shape[0] - 1
    before = None if state is None else state.detach().contiguous()
    if overwrite and before is not None:
        last = before
    else:
        last = torch.empty(rows, q.shape[2], q.shape[3], v.shape[3])
    out = torch.empty(v.shape, dtype=v.dtype)
    ends = None if lengths is None else lengths.detach().to(torch.int64).contiguous()
    # under no_grad a tensor may still ask for gradients, which the core does not take
    plain = (None if x is None else x.detach() for x in tensors)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    run = getattr(core(), kernel)
    run(*plain, before, out, last, ends, offsets, scale, unit_eps)
    return out, last

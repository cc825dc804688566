"""The gated delta rule, one token at a time, with one read and one write of the state per token.

With S the state before the decay a = exp(g), the decayed state is never stored by itself:

    [k * a; q * a] S            both products in one read of S
    u   = beta (v - (k*a)^T S)
    o   = (q*a)^T S + (q . k) u
    S' <- a S + k u^T           the write

Meant for decoding and short inputs; `chunked` is for everything longer. Differentiable by plain
autograd. State and arithmetic float32 (float64 for float64 inputs), output in the dtype of v.
"""

import torch

from interlace.ops.delta_rule.packing import (
    Call,
    check_call,
    read_offsets,
    silence_padding,
    to_rows,
)
from interlace.shapes import Float, Int, Tensor


def kda_step(
    q: Float[Tensor, "B 1 H K"],
    k: Float[Tensor, "B 1 H K"],
    v: Float[Tensor, "B 1 H V"],
    g: Float[Tensor, "B 1 H K"] | None,
    beta: Float[Tensor, "B 1 H"],
    *,
    state: Float[Tensor, "B H K V"] | None = None,
    scale: float | None = None,
) -> tuple[Float[Tensor, "B 1 H V"], Float[Tensor, "B H K V"]]:
    """One token (Kimi Linear report, equation 1); arguments and result as for `kda_recurrent`."""
    return kda_recurrent(q, k, v, g, beta, state=state, scale=scale)


def kda_recurrent(
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
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "S H K V"]]:
    """Gated delta rule by a loop over tokens (Kimi Linear report, equation 1).

    Args:
        q: queries, L2-normalised, not yet scaled.
        k: keys, L2-normalised.
        v: values; the output has their dtype.
        g: logarithm of the decay per key channel, at most 0; None for no decay.
        beta: writing strength, in [0, 1].
        state: state before the first token of each row (of each segment when packed); zeros when
            None. It is not modified.
        scale: factor on q; K**-0.5 when None.
        lengths: real tokens of each row; the rest is padding, changes nothing and reads 0.
        cu_seqlens: offsets of packed segments in the rows laid end to end; one may be empty.

    Returns:
        Output, and the state after the last real token of each row or segment, float32.

    Raises:
        ShapeError: when shapes or offsets do not fit together.
    """
    check_call(q, k, v, g, beta, state, lengths, cu_seqlens)
    call = Call(q, k, v, torch.zeros_like(q) if g is None else g, beta)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if cu_seqlens is not None:
        offsets = read_offsets(cu_seqlens, q.shape[0], q.shape[1])
        rows, sizes, target = to_rows(call, offsets)
        rows, _ = silence_padding(rows, sizes)
        out, last = _loop(rows, state, scale)
        return out.flatten(0, 1).index_select(0, target).view_as(v), last
    if lengths is None:
        return _loop(call, state, scale)
    call, padded = silence_padding(call, lengths)
    out, last = _loop(call, state, scale)
    return out.masked_fill(padded[..., None, None], 0.0), last


def _loop(call: Call, state: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    batch, tokens, heads, key_dim = call.q.shape
    value_dim = call.v.shape[-1]
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    # [B, T, H, K] -> [T, B*H, 1, K]
    q, k, v = (
        x.to(dtype).transpose(0, 1).reshape(tokens, batch * heads, 1, x.shape[-1])
        for x in (call.q, call.k, call.v)
    )
    decay = call.g.to(dtype).exp().transpose(0, 1).reshape(tokens, batch * heads, 1, key_dim)
    beta = call.beta.to(dtype).transpose(0, 1).reshape(tokens, batch * heads, 1, 1)
    q = q * scale
    reads = torch.cat((k, q), dim=2) * decay  # [T, B*H, 2, K]
    direct = (q * k).sum(-1, keepdim=True)
    columns, decay = k.mT, decay.mT
    if state is None:
        S = q.new_zeros(batch * heads, key_dim, value_dim)
    else:
        S = state.to(dtype).reshape(batch * heads, key_dim, value_dim)
    outs = []
    for t in range(tokens):
        both = torch.bmm(reads[t], S)
        u = beta[t] * (v[t] - both[:, :1])
        outs.append(torch.addcmul(both[:, 1:], direct[t], u))
        S = torch.mul(S, decay[t]).baddbmm_(columns[t], u)
    last = S.view(batch, heads, key_dim, value_dim)
    if not outs:
        return call.v.new_zeros(call.v.shape), last.clone()
    out = torch.stack(outs).view(tokens, batch, heads, value_dim).transpose(0, 1)
    return out.to(call.v.dtype).contiguous(), last

"""The gated delta rule, token by token, in the order of the spec: what the rest is held to.

    S  <-  diag(exp(g_t)) S            decay, per key channel
    u  =   v_t - S^T k_t               what the decayed state gets wrong about k_t
    S  <-  S + k_t (beta_t u)^T        write
    o_t =  S^T (scale * q_t)           read, after the write

(spec section 5, step 8; Kimi Linear report, equation 1; K3 report, equation 1). Differentiable by
plain autograd, usable in float64, slow.
"""

from typing import NamedTuple

import torch

from interlace.shapes import Float, Tensor


class KDAStages(NamedTuple):
    """Every intermediate of the recurrence, one entry per token along T, in the compute dtype."""

    decayed: Float[Tensor, "B T H K V"]
    """State after the decay, before the write."""
    missing: Float[Tensor, "B T H V"]
    """u: the value minus what the decayed state answers for the key."""
    written: Float[Tensor, "B T H K V"]
    """State after the write."""
    out: Float[Tensor, "B T H V"]
    """What is read for the query."""


def kda_reference_stages(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None,
    beta: Float[Tensor, "B T H"],
    *,
    state: Float[Tensor, "B H K V"] | None = None,
    scale: float | None = None,
    compute_dtype: torch.dtype = torch.float32,
) -> KDAStages:
    """The recurrence with its named intermediates; arguments as for `kda_reference`."""
    batch, tokens, heads, key_dim = q.shape
    value_dim = v.shape[-1]
    scale = key_dim**-0.5 if scale is None else scale
    q, k, v, beta = (x.to(compute_dtype) for x in (q, k, v, beta))
    log_decay = torch.zeros_like(q) if g is None else g.to(compute_dtype)
    if state is None:
        S = q.new_zeros(batch, heads, key_dim, value_dim)
    else:
        S = state.to(compute_dtype)
    stages: list[tuple[Tensor, ...]] = []
    for t in range(tokens):
        S = log_decay[:, t].exp()[..., None] * S
        decayed = S
        u = v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * u)
        o = torch.einsum("bhkv,bhk->bhv", S, scale * q[:, t])
        stages.append((decayed, u, S, o))
    if not stages:
        wide = q.new_zeros(batch, 0, heads, key_dim, value_dim)
        return KDAStages(wide, v, wide, v)
    return KDAStages(*(torch.stack(column, dim=1) for column in zip(*stages, strict=True)))


def kda_reference(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    g: Float[Tensor, "B T H K"] | None,
    beta: Float[Tensor, "B T H"],
    *,
    state: Float[Tensor, "B H K V"] | None = None,
    scale: float | None = None,
    compute_dtype: torch.dtype = torch.float32,
) -> tuple[Float[Tensor, "B T H V"], Float[Tensor, "B H K V"]]:
    """Gated delta rule, token by token (Kimi Linear report, equation 1).

    Args:
        q: queries, L2-normalised, not yet scaled.
        k: keys, L2-normalised.
        v: values.
        g: logarithm of the decay per key channel, at most 0; None for no decay.
        beta: writing strength, in [0, 1].
        state: state before the first token; zeros when None.
        scale: factor on q; K**-0.5 when None.
        compute_dtype: dtype of all arithmetic, of the output and of the state.

    Returns:
        Output, and the state after the last token.
    """
    stages = kda_reference_stages(
        q, k, v, g, beta, state=state, scale=scale, compute_dtype=compute_dtype
    )
    if q.shape[1]:
        return stages.out, stages.written[:, -1]
    if state is not None:
        return stages.out, state.to(compute_dtype)
    batch, _, heads, key_dim = q.shape
    return stages.out, q.new_zeros(batch, heads, key_dim, v.shape[-1], dtype=compute_dtype)


def kda_gate_reference(
    z: Float[Tensor, "B T H K"],
    A_log: Float[Tensor, "H"],
    dt_bias: Float[Tensor, "H K"],
    lower_bound: float | None = None,
    *,
    compute_dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "B T H K"]:
    """Log decay as it is written (spec section 5, step 6); arguments as for `kda_gate`.

    Returns:
        g <= 0 in the compute dtype.
    """
    logits = z.to(compute_dtype) + dt_bias.to(compute_dtype)
    rate = torch.exp(A_log.to(compute_dtype))[:, None]
    if lower_bound is None:
        # softplus(x) = ln(1 + e^x), with the larger of e^x and e^-x taken out of the logarithm
        softplus = logits.clamp(min=0) + torch.log1p(torch.exp(-logits.abs()))
        return -rate * softplus
    return lower_bound / (1 + torch.exp(-rate * logits))

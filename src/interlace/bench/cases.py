"""The operators that `ops` measures, at the sizes of a config, each with its work and its error.

Decoding operators take weights, latents and states from a cold buffer; what a layer has just
computed (queries, activations) is warm there as it is in a model. The error is that of the same
call over a few heads or rows against float64: computed by the reference, or, for attention against
a cache, by the absorbed form in float64, which the tests hold to the reference.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from interlace.bench.cold import Cold
from interlace.bench.work import (
    Work,
    delta_chunk_work,
    delta_step_work,
    expert_work,
    latent_decode_work,
    latent_prefill_work,
    linear_work,
    pass_work,
)
from interlace.config import HybridConfig
from interlace.config.sizes import expert_width
from interlace.ops.attention import (
    attention_absorbed,
    attention_expanded,
    attention_reference,
    latent_attention,
)
from interlace.ops.conv import short_conv, short_conv_reference
from interlace.ops.delta_rule import kda, kda_reference
from interlace.ops.linear import linear
from interlace.ops.mlp import swiglu, swiglu_reference
from interlace.ops.moe import moe_experts, moe_experts_reference
from interlace.ops.norm import (
    gated_rms_norm,
    gated_rms_norm_reference,
    l2norm,
    rms_norm,
    rms_norm_reference,
)

__all__ = ["Case", "all_cases"]

HEADS = 3
"""Heads over which an error is computed, at most."""

ROWS = 40
"""Rows over which an error is computed, at most, where rows are independent."""

PAST, QUERIES = 32_768, 512
"""A prefill chunk on a long past, for prompts of `QUERIES` tokens and more."""

_F64 = torch.float64
_BF16 = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Case:
    """One operator at one size, prepared.

    Args:
        detail: its sizes, for a reader.
        work: what it must do.
        run: one call.
        error: its error against float64.
    """

    detail: str
    work: Work
    run: Callable[[], object]
    error: Callable[[], float]


Make = Callable[[Cold], Case]


def all_cases(
    config: HybridConfig, depths: tuple[int, ...], prompt: int
) -> Iterator[tuple[str, Make]]:
    """Name and maker of each operator that the config has.

    Args:
        config: its sizes.
        depths: cached tokens of a decoding step.
        prompt: tokens of a prefill.
    """
    if config.num_global_layers:
        for depth in depths:
            yield "attention decode", partial(_attention_decode, config, depth)
        yield "attention prefill", lambda _: _attention_prefill(config, prompt)
        past = PAST if prompt >= QUERIES else prompt
        queries = min(prompt, QUERIES)
        yield "attention chunk", partial(_attention_chunk, config, queries, past)
    if config.num_kda_layers:
        yield "kda step", partial(_kda_step, config)
        yield "kda prefill", lambda _: _kda_prefill(config, prompt)
        yield "convolution", lambda _: _convolution(config, prompt)
        yield "gated norm", lambda _: _gated_norm(config, prompt)
    yield "norm", lambda _: _norm(config, prompt)
    for rows in (1, 2, 8, min(prompt, QUERIES)):
        yield "linear", partial(_linear, config, rows)
    yield "swiglu", lambda _: _swiglu(config, prompt)
    if config.num_experts:
        for rows in (1, min(prompt, QUERIES)):
            yield "experts", partial(_experts, config, rows)


def _error(got: Tensor, exact: Tensor) -> float:
    """Max |a - b| / max(1, max |b|)."""
    a, b = got.to(_F64), exact.to(_F64)
    return float((a - b).abs().max() / b.abs().max().clamp(min=1.0))


def _random(*shape: int) -> Tensor:
    return torch.randn(shape).to(_BF16)


def _weights(config: HybridConfig, cold: Cold) -> list[Tensor]:
    """W_UK and W_UV from the buffer, unscaled: what is timed scales its queries instead."""
    heads, rank = config.num_attention_heads, config.kv_lora_rank
    shapes = ((heads, config.qk_nope_head_dim, rank), (heads, config.v_head_dim, rank))
    return [cold.take(*shape) for shape in shapes]


def _query(q: Tensor, rank: int) -> Tensor:
    """Queries so short that keys from the buffer, sqrt(R) too long, give scores of order one.

    Of scores far apart the exponentials are denormal, ten times as slow, and those of no model.
    """
    return q * rank**-0.5


def _attention_decode(config: HybridConfig, depth: int, cold: Cold) -> Case:
    heads, rank, shared = config.num_attention_heads, config.kv_lora_rank, config.qk_rope_head_dim
    q = _random(1, 1, heads, config.qk_head_dim)
    timed = _query(q, rank)

    def run() -> Tensor:
        return latent_attention(
            timed, cold.take(1, depth, config.latent_dim), *_weights(config, cold)
        )

    def error() -> float:
        latent, kept = cold.take(1, depth, config.latent_dim), slice(0, HEADS)
        parts = [(x[kept] * rank**-0.5).to(_BF16) for x in _weights(config, cold)]
        exact = attention_absorbed(q[:, :, kept].to(_F64), latent, *(x.to(_F64) for x in parts))
        assert isinstance(exact, Tensor)
        return _error(latent_attention(q[:, :, kept], latent, *parts), exact)

    work = latent_decode_work(heads, rank, shared, depth)
    return Case(f"H={heads}, {depth:,} cached", work, run, error)


def _attention_prefill(config: HybridConfig, tokens: int) -> Case:
    heads, width = config.num_attention_heads, config.qk_head_dim
    q, k = _random(1, tokens, heads, width), _random(1, tokens, heads, width)
    v = _random(1, tokens, heads, config.v_head_dim)

    def error() -> float:
        parts = [x[:, :, :HEADS] for x in (q, k, v)]
        exact = attention_reference(*parts, compute_dtype=_F64)
        return _error(attention_expanded(*parts), exact)

    work = latent_prefill_work(heads, width + config.v_head_dim, tokens)
    return Case(
        f"H={heads}, T={tokens:,}, no cache", work, lambda: attention_expanded(q, k, v), error
    )


def _attention_chunk(config: HybridConfig, tokens: int, past: int, cold: Cold) -> Case:
    heads, rank = config.num_attention_heads, config.kv_lora_rank
    q = _random(1, tokens, heads, config.qk_head_dim)
    timed = _query(q, rank)
    memory = past + tokens

    def run() -> Tensor:
        latent = cold.take(1, memory, config.latent_dim)
        return latent_attention(timed, latent, *_weights(config, cold))

    def error() -> float:
        latent = cold.take(1, memory, config.latent_dim)
        parts = [(x[:1] * rank**-0.5).to(_BF16) for x in _weights(config, cold)]
        some = q[:, -ROWS:, :1].to(_F64)
        exact = attention_absorbed(some, latent, *(x.to(_F64) for x in parts))
        assert isinstance(exact, Tensor)
        return _error(latent_attention(q[:, :, :1], latent, *parts)[:, -ROWS:], exact)

    width = config.qk_head_dim + config.v_head_dim
    work = latent_prefill_work(heads, width, tokens, past)
    return Case(f"H={heads}, {tokens:,} on {past:,} cached", work, run, error)


def _delta_call(config: HybridConfig, tokens: int) -> list[Tensor]:
    shape = (1, tokens, config.kda_num_heads, config.kda_head_dim)
    q, k = (l2norm(torch.randn(shape)).to(_BF16) for _ in range(2))
    return [q, k, _random(*shape), -torch.rand(shape), torch.rand(shape[:-1])]


def _delta_error(call: list[Tensor], state: Tensor | None, **options: Any) -> float:
    parts = [x[:, :, :HEADS] for x in call]
    first = None if state is None else state[:, :HEADS]
    exact, last = kda_reference(
        *(x.to(_F64) for x in parts),
        state=None if first is None else first.to(_F64),
        compute_dtype=_F64,
    )
    out, kept = kda(*parts, state=first, **options)
    assert kept is not None
    return max(_error(out, exact), _error(kept, last))


def _kda_step(config: HybridConfig, cold: Cold) -> Case:
    heads, key = config.kda_num_heads, config.kda_head_dim
    call = _delta_call(config, 1)
    # written over, and what float32 leaves is no bf16 for others: 256 states of their own
    states = Cold(min(cold.nbytes, 1024 * heads * key * key), seed=1)
    state = partial(states.take, 1, heads, key, key, dtype=torch.float32)
    return Case(
        f"H={heads}, state in DRAM",
        delta_step_work(heads, key, key),
        lambda: kda(*call, state=state(), overwrite=True),
        lambda: _delta_error(call, state()),
    )


def _kda_prefill(config: HybridConfig, tokens: int) -> Case:
    heads, bound = config.kda_num_heads, config.gate_lower_bound
    call = _delta_call(config, tokens)
    return Case(
        f"H={heads}, T={tokens:,}",
        delta_chunk_work(heads, config.kda_head_dim, tokens),
        lambda: kda(*call, min_decay=bound),
        lambda: _delta_error(call, None, min_decay=bound),
    )


def _convolution(config: HybridConfig, tokens: int) -> Case:
    channels = config.kda_dim
    x, taps = _random(1, tokens, channels), _random(channels, config.short_conv_kernel_size)

    def error() -> float:
        some = slice(0, 64)
        out, _ = short_conv(x[..., some], taps[some])
        exact, _ = short_conv_reference(x[..., some].to(_F64), taps[some].to(_F64))
        return _error(out, exact)

    return Case(
        f"{tokens:,} x {channels:,}",
        pass_work(x.numel(), x.numel()),
        lambda: short_conv(x, taps),
        error,
    )


def _gated_norm(config: HybridConfig, tokens: int) -> Case:
    shape = (tokens, config.kda_num_heads, config.kda_head_dim)
    x, gate, weight = _random(*shape), _random(*shape), _random(shape[-1])
    eps = config.rms_norm_eps

    def error() -> float:
        exact = gated_rms_norm_reference(
            x[:ROWS].to(_F64), gate[:ROWS].to(_F64), weight.to(_F64), eps, compute_dtype=_F64
        )
        return _error(gated_rms_norm(x[:ROWS], gate[:ROWS], weight, eps), exact)

    return Case(
        f"{tokens:,} x {shape[1]} x {shape[2]}",
        pass_work(2 * x.numel(), x.numel()),
        lambda: gated_rms_norm(x, gate, weight, eps),
        error,
    )


def _norm(config: HybridConfig, tokens: int) -> Case:
    x, weight = _random(tokens, config.hidden_size), _random(config.hidden_size)
    eps = config.rms_norm_eps

    def error() -> float:
        exact = rms_norm_reference(x[:ROWS].to(_F64), weight.to(_F64), eps, compute_dtype=_F64)
        return _error(rms_norm(x[:ROWS], weight, eps), exact)

    return Case(
        f"{tokens:,} x {config.hidden_size:,}",
        pass_work(x.numel(), x.numel()),
        lambda: rms_norm(x, weight, eps),
        error,
    )


def _linear(config: HybridConfig, rows: int, cold: Cold) -> Case:
    width = config.hidden_size
    out = config.kda_dim or config.num_attention_heads * config.v_head_dim
    x = _random(rows, width)

    def error() -> float:
        w, some = cold.take(out, width) * width**-0.5, x[:ROWS]
        return _error(linear(some, w), linear(some.to(_F64), w.to(_F64)))

    return Case(
        f"{out:,} x {width:,}, M={rows}",
        linear_work(rows, width, out),
        lambda: linear(x, cold.take(out, width)),
        error,
    )


def _swiglu(config: HybridConfig, tokens: int) -> Case:
    gate, up = (_random(tokens, config.intermediate_size) for _ in range(2))

    def error() -> float:
        exact = swiglu_reference(gate[:ROWS].to(_F64), up[:ROWS].to(_F64), compute_dtype=_F64)
        return _error(swiglu(gate[:ROWS], up[:ROWS]), exact)

    return Case(
        f"{tokens:,} x {config.intermediate_size:,}",
        pass_work(gate.numel() * 2, gate.numel()),
        lambda: swiglu(gate, up),
        error,
    )


def _experts(config: HybridConfig, rows: int, cold: Cold) -> Case:
    chosen, inner = config.num_experts_per_token or 1, config.moe_intermediate_size or 1
    width = expert_width(config)
    # as many as rows can visit, and no more than the buffer holds twice over
    fit = cold.nbytes // (6 * width * inner)
    count = max(chosen, min(config.num_experts or 1, rows * chosen, fit))
    x = _random(rows, width)
    indices = torch.stack([torch.randperm(count)[:chosen] for _ in range(rows)])
    weights = torch.full((rows, chosen), 1 / chosen)
    used = len(indices.unique())

    def experts() -> list[list[Tensor]]:
        each = [(cold.take(inner, width), cold.take(width, inner)) for _ in range(count)]
        return [
            [a for a, _ in each],
            [b for _, b in each],
            [cold.take(inner, width) for _ in range(count)],
        ]

    def error() -> float:
        few = indices[:2]
        w1, w2, w3 = ([w * w.shape[-1] ** -0.5 for w in part] for part in experts())
        exact = moe_experts_reference(
            x[:2].to(_F64), few, weights[:2], w1, w2, w3, compute_dtype=_F64
        )
        return _error(moe_experts(x[:2], few, weights[:2], w1, w2, w3), exact)

    return Case(
        f"{chosen} of {count} experts of {inner:,} x {width:,}, M={rows}",
        expert_work(rows, chosen, used, width, inner),
        lambda: moe_experts(x, indices, weights, *experts()),
        error,
    )

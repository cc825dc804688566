"""One sequence alone and the same sequence eight times in a batch give the same result."""

import pytest
import torch

import interlace
from closeness import assert_close
from interlace.ops.attention import attention_absorbed, attention_expanded, attention_rebuilt
from interlace.ops.conv import short_conv
from interlace.ops.delta_rule import kda_chunk, kda_gate, kda_recurrent
from interlace.ops.mlp import swiglu
from interlace.ops.moe import moe_experts, route
from interlace.ops.norm import gated_rms_norm, l2norm, rms_norm

T, H, N, P, V, R, K, COPIES = 37, 3, 10, 6, 14, 22, 12, 8
EXPERTS, CHOSEN = 5, 2


def call(operator, rows):
    """The operator on the first `rows` of eight equal rows."""
    torch.manual_seed(5)

    def one(*shape):
        return torch.randn(1, *shape).repeat(rows, *[1] * len(shape))

    if operator is short_conv:
        return operator(one(T, K), torch.randn(K, 4))[0]
    if operator is attention_expanded:
        return operator(one(T, H, N + P), one(T, H, N + P), one(T, H, V))
    if operator in (attention_absorbed, attention_rebuilt):
        return operator(one(2, H, N + P), one(T, R + P), torch.randn(H, N, R), torch.randn(H, V, R))
    if operator in (l2norm, swiglu, rms_norm, gated_rms_norm):
        x, weight = [one(T, K), one(T, K)], torch.randn(K)
        return {
            l2norm: lambda: l2norm(x[0]),
            swiglu: lambda: swiglu(*x),
            rms_norm: lambda: rms_norm(x[0], weight, 1e-5),
            gated_rms_norm: lambda: gated_rms_norm(*x, weight, 1e-5),
        }[operator]()
    if operator is kda_gate:
        return operator(one(T, H, K), torch.randn(H), torch.randn(H, K))
    if operator in (route, moe_experts):
        x, router, bias = one(T, K), torch.randn(EXPERTS, K), torch.randn(EXPERTS)
        indices, weights = route(x.flatten(0, 1), router, bias, top_k=CHOSEN)
        if operator is route:
            # which experts, and with which weights
            full = torch.zeros(rows * T, EXPERTS).scatter(1, indices, weights)
            return full.view(rows, T, EXPERTS)
        shapes = ((N, K), (K, N), (N, K))
        matrices = [torch.randn(EXPERTS, *shape) / shape[1] ** 0.5 for shape in shapes]
        return operator(x.flatten(0, 1), indices, weights, *matrices).view(rows, T, K)
    unit = torch.nn.functional.normalize
    q, k, v = unit(one(T, H, K), dim=-1), unit(one(T, H, K), dim=-1), one(T, H, V)
    return operator(q, k, v, -one(T, H, K).abs(), one(T, H).sigmoid())[0]


@pytest.mark.parametrize(
    "operator",
    [
        short_conv,
        attention_expanded,
        attention_absorbed,
        attention_rebuilt,
        kda_chunk,
        kda_recurrent,
        kda_gate,
        l2norm,
        rms_norm,
        gated_rms_norm,
        swiglu,
        route,
        moe_experts,
    ],
    ids=lambda operator: operator.__name__,
)
def test_b12_operators_do_not_depend_on_the_batch(operator):
    alone, together = call(operator, 1), call(operator, COPIES)
    for row in together:
        assert_close(row, alone[0], 1e-6, operator.__name__)


def test_b12_model_and_its_greedy_tokens_do_not_depend_on_the_batch():
    lm = interlace.build("kimi-linear-tiny", seed=0).requires_grad_(False)
    for parameter in lm.parameters():
        if parameter.ndim == 2:
            parameter.mul_(4)  # logits that differ by far more than rounding
    prompt = torch.randint(0, lm.config.vocab_size, (1, T))

    def greedy(rows):
        cache, chosen, seen = lm.new_cache(rows), [], []
        logits = lm(prompt.repeat(rows, 1), cache=cache, last_only=True)
        for _ in range(5):
            seen.append(logits[:, 0])
            chosen.append(logits.argmax(-1))
            logits = lm(chosen[-1], cache=cache, last_only=True)
        return torch.cat(chosen, 1), torch.stack(seen, 1)

    tokens, logits = greedy(COPIES)
    expected_tokens, expected_logits = greedy(1)
    assert torch.equal(tokens, expected_tokens.repeat(COPIES, 1))
    assert_close(logits, expected_logits.repeat(COPIES, 1, 1), 1e-5, "logits")

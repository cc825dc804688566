"""Routing and experts against the token-by-token reference."""

from inspect import unwrap

import pytest
import torch

from closeness import assert_close, assert_no_worse
from interlace.errors import ShapeError
from interlace.ops.mlp import situ_glu, situ_glu_reference, swiglu, swiglu_reference
from interlace.ops.moe import (
    choose,
    dispatch,
    moe_experts,
    moe_experts_reference,
    route,
    route_reference,
    router_scores,
)

T, D, E, F, K = 9, 7, 12, 5, 3


def router(dtype=torch.float64):
    x, weight, bias = torch.randn(T, D), torch.randn(E, D), torch.randn(E)
    return [t.to(dtype) for t in (x, weight, bias)]


def experts(dtype=torch.float64):
    shapes = [(E, F, D), (E, D, F), (E, F, D)]
    return [torch.randn(s, dtype=torch.float64).to(dtype) for s in shapes]


OPTIONS = {
    "plain": {},
    "scaled": {"scaling": 2.446},
    "raw": {"renormalize": False},
    "groups": {"num_groups": 4, "topk_group": 2, "scaling": 2.446},
    "groups of one": {"num_groups": 12, "topk_group": 5},
    "biased": {"biased_weights": True},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("tokens", [1, T])
def test_route_equals_the_reference_with_gradients(name, tokens):
    x, weight, bias = router()
    x = x[:tokens].requires_grad_()
    weight.requires_grad_()
    got, got_w = route(x, weight, bias, top_k=K, **OPTIONS[name])
    want, want_w = route_reference(
        x, weight, bias, top_k=K, compute_dtype=torch.float64, **OPTIONS[name]
    )
    assert torch.equal(got, want)
    assert_close(got_w, want_w, 1e-10)
    dy = torch.randn_like(got_w)
    for a, b in zip(
        torch.autograd.grad(got_w, (x, weight), dy),
        torch.autograd.grad(want_w, (x, weight), dy),
        strict=True,
    ):
        assert_close(a, b, 1e-10)


def test_the_bias_chooses_and_does_not_weigh():
    x, weight, bias = router()
    bias = torch.zeros(E).double()
    bias[4] = 5
    indices, weights = route(x, weight, bias, top_k=1, renormalize=True)
    assert indices.flatten().tolist() == [4] * T
    # one expert: not renormalised
    assert_close(weights[:, 0], torch.sigmoid(x @ weight[4]), 1e-12)


def test_router_of_a_bfloat16_model_works_in_float32():
    x, weight, bias = router(torch.bfloat16)
    bias = torch.linspace(0, 1e-3, E)  # below the resolution of bf16 beside a score of 0.5
    x = torch.zeros_like(x)
    indices, weights = route(x, weight, bias, top_k=2)
    assert indices[0].tolist() == [E - 1, E - 2]
    assert weights.dtype == torch.float32
    assert indices.dtype == torch.int64


def test_groups_that_cannot_supply_the_experts_are_refused():
    x, weight, bias = router()
    for options in ({"num_groups": 5}, {"num_groups": 4, "topk_group": 5}):
        with pytest.raises(ShapeError, match="num_groups"):
            route(x, weight, bias, top_k=K, **options)
    with pytest.raises(ShapeError, match=r"top_k must lie in 1\.\.3"):
        route(x, weight, bias, top_k=4, num_groups=4, topk_group=1)


@pytest.mark.parametrize("tokens", [1, T])
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize(
    ("glu", "reference"),
    [(swiglu, swiglu_reference), (situ_glu, situ_glu_reference)],
    ids=["swiglu", "situ"],
)
def test_experts_equal_the_reference_with_gradients(tokens, stacked, glu, reference):
    x, weight, bias = router()
    indices, weights = route(x[:tokens], weight, bias, top_k=K)
    given = [t.detach().requires_grad_() for t in (x[:tokens], weights, *experts())]

    def fast(x, w, *m):
        return moe_experts(x, indices, w, *(m if stacked else (list(e) for e in m)), glu=glu)

    def plain(x, w, *m):
        return moe_experts_reference(x, indices, w, *m, glu=reference, compute_dtype=torch.float64)

    got, want = fast(*given), plain(*given)
    assert_close(got, want, 1e-10)
    dy = torch.randn_like(got)
    for a, b in zip(
        torch.autograd.grad(got, given, dy), torch.autograd.grad(want, given, dy), strict=True
    ):
        assert_close(a, b, 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_experts_in_low_precision_are_no_worse_than_the_plain_way(dtype):
    x, weight, bias = router(dtype)
    indices, weights = route(x, weight, bias, top_k=K)
    matrices = experts(dtype)

    def plain(x, w1, w2, w3):
        out = torch.zeros(T, D)
        for t in range(T):
            for e, w in zip(indices[t], weights[t], strict=True):
                h = torch.nn.functional.silu(w1[e] @ x[t]) * (w3[e] @ x[t])
                out[t] += w * (w2[e] @ h)
        return out.to(dtype)

    exact = moe_experts_reference(
        x.double(),
        indices,
        weights.double(),
        *(m.double() for m in matrices),
        compute_dtype=torch.float64,
    )
    got = moe_experts(x, indices, weights, *matrices)
    assert got.dtype == dtype
    assert_no_worse(got, plain=plain(x, *matrices), exact=exact)


def test_experts_without_a_token_are_not_read():
    x, weight, bias = router()
    bias[:4] = -9
    indices, weights = route(x, weight, bias, top_k=K)
    matrices = experts()
    for m in matrices:
        m[:4] = float("nan")
    before = [t.clone() for t in (x, indices, weights)]
    assert torch.isfinite(moe_experts(x, indices, weights, *matrices)).all()
    assert all(torch.equal(a, b) for a, b in zip((x, indices, weights), before, strict=True))


def test_b22_b23_strided_inputs_are_read_right_and_left_unchanged():
    def results(x, weight, bias, *matrices, dy):
        leaves = [t.detach().requires_grad_() for t in (x, weight, *matrices)]
        indices, weights = route(*leaves[:2], bias, top_k=K)
        out = moe_experts(leaves[0], indices, weights, *leaves[2:])
        return [out.detach(), *torch.autograd.grad(out, leaves, dy)]

    given = [*router(), *experts()]
    dy = torch.randn(1, D, dtype=torch.float64).expand(T, D)
    want = results(*given, dy=dy.contiguous())
    strided = [torch.stack([x, x + 9], -1).flatten(-2)[..., ::2] for x in given]
    kept = [x.clone() for x in (*strided, dy)]
    first, second = results(*strided, dy=dy), results(*strided, dy=dy)
    for a, b, c in zip(first, second, want, strict=True):
        assert torch.equal(a, b)
        assert_close(a, c, 1e-12)
    assert all(torch.equal(a, b) for a, b in zip((*strided, dy), kept, strict=True))


def test_lists_of_different_length_are_refused():
    x, weight, bias = router()
    indices, weights = route(x, weight, bias, top_k=K)
    w1, w2, w3 = experts()
    with pytest.raises(ShapeError, match="one matrix per expert"):
        moe_experts(x, indices, weights, list(w1), list(w2[:3]), list(w3))


def loop_over_experts(x, indices, weights, w1, w2, w3, glu):
    """Every expert on every token, and a mask: the plainest sum there is."""
    out = torch.zeros_like(x)
    for e in range(len(w1)):
        share = (weights * (indices == e)).sum(-1, keepdim=True)
        out = out + share * (glu(x @ w1[e].T, x @ w3[e].T) @ w2[e].T)
    return out


@pytest.mark.parametrize("tokens", [1, 2, 250])
def test_sorted_dispatch_is_the_loop_over_experts_with_gradients(tokens):
    x = torch.randn(tokens, D, dtype=torch.float64)
    _, weight, bias = router()
    indices, weights = route(x, weight, bias, top_k=K)
    given = [t.detach().requires_grad_() for t in (x, weights, *experts())]
    got = moe_experts(given[0], indices, *given[1:], glu=situ_glu)
    want = loop_over_experts(given[0], indices, *given[1:], glu=situ_glu_reference64)
    assert_close(got, want, 1e-10)
    dy = torch.randn_like(got)
    for a, b in zip(
        torch.autograd.grad(got, given, dy), torch.autograd.grad(want, given, dy), strict=True
    ):
        assert_close(a, b, 1e-10)


def situ_glu_reference64(gate, up):
    return situ_glu_reference(gate, up, compute_dtype=torch.float64)


def test_a_hundred_thousand_tokens_are_those_of_each_alone():
    tokens, count = 100_000, 40
    x = torch.randn(tokens, D)
    weight, bias = torch.randn(count, D), 0.3 * torch.randn(count)
    shapes = [(count, F, D), (count, D, F), (count, F, D)]
    matrices = [torch.randn(s) for s in shapes]
    indices, weights = route(x, weight, bias, top_k=K)
    got = moe_experts(x, indices, weights, *matrices)
    for row in (0, 31_415, tokens - 1):
        one = slice(row, row + 1)
        alone = moe_experts(x[one], indices[one], weights[one], *matrices)
        assert_close(got[one], alone, 1e-5)
    with torch.no_grad():
        assert_close(moe_experts(x, indices, weights, *matrices), got, 1e-6)


def test_an_expert_runs_once_for_all_its_tokens_in_ascending_order():
    x, weight, bias = router()
    indices, weights = route(x, weight, bias, top_k=K)
    calls = []

    def expert(e, tokens):
        calls.append((e, len(tokens)))
        return tokens

    out = dispatch(x, indices, weights, expert)
    assert [e for e, _ in calls] == sorted(set(indices.flatten().tolist()))
    assert dict(calls) == {e: int((indices == e).sum()) for e, _ in calls}
    assert_close(out, x * weights.sum(-1, keepdim=True), 1e-12)


def test_choices_of_other_rows_are_refused():
    x, weight, bias = router()
    indices, weights = route(x, weight, bias, top_k=K)
    with pytest.raises(ShapeError, match="pass what route returned"):
        # past the checker of annotations, which is not there outside the tests
        unwrap(dispatch)(x[:3], indices, weights, lambda e, tokens: tokens)


def test_scores_and_choice_are_the_two_halves_of_routing():
    x, weight, bias = router()
    both = choose(router_scores(x, weight), bias, top_k=K, scaling=2.446)
    for a, b in zip(both, route(x, weight, bias, top_k=K, scaling=2.446), strict=True):
        assert torch.equal(a, b)

"""Attention Residuals: two phases equal the direct form, output and gradient, and nothing leaks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from closeness import assert_close, assert_no_worse
from interlace.errors import ShapeError
from interlace.ops.residual import (
    attention_residual_reference,
    fold_live,
    make_candidate,
    read_bank,
)

B, T, D = 2, 5, 7
EPS = 1e-5


def case(slots: int, reads: int, dtype=torch.float64, scale: float = 3.0):
    bank = [scale * torch.randn(B, T, D).to(dtype) for _ in range(slots)]
    live = [scale * torch.randn(B, T, D).to(dtype) for _ in range(reads)]
    norm = (1 + 0.3 * torch.randn(reads, D)).to(dtype)
    proj = torch.randn(reads, D).to(dtype)
    return bank, live, norm, proj


def two_phase(bank, live, norm, proj, eps=EPS):
    wide = torch.promote_types(norm.dtype, torch.float32)
    candidates = [make_candidate(x, eps) for x in bank]
    reads = read_bank(candidates, norm.to(wide) * proj.to(wide))
    return [fold_live(r, candidates, x, eps) for r, x in zip(reads, live, strict=True)]


def direct(bank, live, norm, proj, eps=EPS, compute_dtype=torch.float64):
    return [
        attention_residual_reference(bank, x, n, p, eps, compute_dtype=compute_dtype)
        for x, n, p in zip(live, norm, proj, strict=True)
    ]


@pytest.mark.parametrize(("slots", "reads"), [(1, 1), (1, 4), (3, 5), (8, 24)])
def test_two_phases_are_the_direct_form_with_gradients(slots, reads):
    bank, live, norm, proj = case(slots, reads)
    given_ = [t.requires_grad_() for t in (*bank, *live, norm, proj)]
    fast, plain = two_phase(bank, live, norm, proj), direct(bank, live, norm, proj)
    dy = torch.randn(reads, B, T, D, dtype=torch.float64)
    assert_close(torch.stack(fast), torch.stack(plain), 1e-10)
    for a, b in zip(
        torch.autograd.grad(torch.stack(fast), given_, dy),
        torch.autograd.grad(torch.stack(plain), given_, dy),
        strict=True,
    ):
        assert_close(a, b, 1e-10)


@settings(max_examples=25, deadline=None)
@given(slots=st.integers(1, 9), reads=st.integers(1, 4), power=st.integers(-6, 6))
def test_any_size_of_stream_and_any_number_of_slots(slots, reads, power):
    bank, live, norm, proj = case(slots, reads, scale=10.0**power)
    for a, b in zip(two_phase(bank, live, norm, proj), direct(bank, live, norm, proj), strict=True):
        assert_close(a, b, 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_is_no_worse_than_the_plain_way(dtype):
    bank, live, norm, proj = case(3, 4, dtype)
    given_ = [t.requires_grad_() for t in (*bank, *live, norm, proj)]
    wide = [t.detach().double().requires_grad_() for t in given_]
    dy = torch.randn(4, B, T, D).to(dtype)

    def parts(values):
        return list(values[:3]), list(values[3:7]), values[7], values[8]

    def run(way, values, dy):
        out = torch.stack(way(*parts(values)))
        return [out.detach(), *torch.autograd.grad(out, values, dy)]

    exact = run(direct, wide, dy.double())
    slow = run(lambda *a: direct(*a, compute_dtype=torch.float32), given_, dy)
    for got, p, e in zip(run(two_phase, given_, dy), slow, exact, strict=True):
        assert got.dtype == dtype
        assert_no_worse(got, plain=p, exact=e)


def test_scores_far_apart_stay_finite():
    bank, live, norm, proj = case(2, 2)
    proj = proj * 1e4
    for got, want in zip(
        two_phase(bank, live, norm, proj), direct(bank, live, norm, proj), strict=True
    ):
        assert torch.isfinite(got).all()
        assert_close(got, want, 1e-10)


def test_a_stream_of_zeros_has_a_score_and_a_gradient():
    bank, live, norm, proj = case(2, 1)
    bank[0].zero_()
    given_ = [t.requires_grad_() for t in (*bank, *live)]
    for grad in torch.autograd.grad(two_phase(bank, live, norm, proj)[0].sum(), given_):
        assert torch.isfinite(grad).all()


def test_by_hand():
    # directions (1, 1) and (-1, 1) of mean square 1; norm * proj = (0, log 2): scores equal
    bank = [torch.tensor([[3.0, 3.0]])]
    live = torch.tensor([[-5.0, 5.0]])
    norm, proj = torch.tensor([2.0, 0.5]), torch.tensor([0.0, 2.0]) * torch.log(torch.tensor(2.0))
    got = attention_residual_reference(bank, live, norm, proj, 0.0)
    assert_close(got, torch.tensor([[-1.0, 4.0]]), 1e-6)
    # (log 2, 0): the first scores log 2, the second -log 2, so 4 : 1, of the values as they are
    proj = torch.tensor([0.5, 0.0]) * torch.log(torch.tensor(2.0))
    got = attention_residual_reference(bank, live, norm, proj, 0.0)
    assert_close(got, torch.tensor([[7 / 5, 17 / 5]]), 1e-6)


def test_no_candidate_but_the_live_stream_is_that_stream():
    _, live, norm, proj = case(1, 1)
    got = direct([], live, norm, proj)[0]
    assert torch.equal(got, live[0])


def test_b102_a_candidate_that_shares_the_memory_of_another_is_read_as_any():
    bank, _, norm, proj = case(2, 1)
    same = two_phase(bank, [bank[1]], norm, proj)[0]
    apart = two_phase(bank, [bank[1].clone()], norm, proj)[0]
    assert torch.equal(same, apart)


def test_b102_nothing_given_is_changed_and_the_result_is_new_memory():
    for dtype in (torch.float32, torch.bfloat16):
        bank, live, norm, proj = case(3, 1, dtype)
        tensors = [*bank, *live, norm, proj]
        before = [t.clone() for t in tensors]
        mixed = two_phase(bank, live, norm, proj)[0]
        mixed.fill_(float("nan"))
        assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_what_does_not_fit_is_refused():
    bank, live, norm, proj = case(2, 1)
    with pytest.raises(ShapeError, match="bank the embedding first"):
        read_bank([], norm * proj)
    with pytest.raises(ShapeError, match=r"queries must be \[reads, 7\]"):
        read_bank([make_candidate(x, EPS) for x in bank], norm[:, :3] * proj[:, :3])
    with pytest.raises(ShapeError, match="every candidate must have the shape"):
        attention_residual_reference([bank[0][:1]], live[0], norm[0], proj[0], EPS)

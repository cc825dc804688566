"""Norms against their references: values, gradients, strides, rounding."""

import inspect

import pytest
import torch

from closeness import assert_close, assert_no_worse
from interlace.errors import ShapeError
from interlace.ops.norm import (
    gated_rms_norm,
    gated_rms_norm_reference,
    l2norm,
    l2norm_reference,
    rms_norm,
    rms_norm_reference,
)

EPS = 1e-2  # large, so that a misplaced eps shows
SHAPE = (3, 5, 7)


def arguments(name, dtype=torch.float64, shape=SHAPE):
    x, gate, weight = torch.randn(shape), torch.randn(shape), torch.randn(shape[-1])
    chosen = {"rms": (x, weight), "gated": (x, gate, weight), "l2": (x,)}[name]
    return [t.to(dtype).requires_grad_() for t in chosen]


def both(name):
    plain = {"rms": rms_norm_reference, "gated": gated_rms_norm_reference, "l2": l2norm_reference}
    fast = {"rms": rms_norm, "gated": gated_rms_norm, "l2": l2norm}
    return (
        lambda *a: fast[name](*a, EPS),
        lambda *a, dtype=torch.float32: plain[name](*a, EPS, compute_dtype=dtype),
    )


NAMES = pytest.mark.parametrize("name", ["rms", "gated", "l2"])


def gradients(fn, inputs, dy):
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = fn(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, dy.to(out.dtype))]


@NAMES
def test_float64_equals_the_reference_and_its_autograd(name):
    fast, plain = both(name)
    inputs, dy = arguments(name), torch.randn(SHAPE, dtype=torch.float64)
    exact = gradients(lambda *a: plain(*a, dtype=torch.float64), inputs, dy)
    for got, want in zip(gradients(fast, inputs, dy), exact, strict=True):
        assert_close(got, want, 1e-10)


@NAMES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_is_no_worse_than_the_plain_way(name, dtype):
    fast, plain = both(name)
    inputs = arguments(name, dtype, (11, 5, 32))
    dy = torch.randn(11, 5, 32).to(dtype)
    wide = [x.detach().double() for x in inputs]
    exact = gradients(lambda *a: plain(*a, dtype=torch.float64), wide, dy)
    slow = gradients(plain, inputs, dy)
    for got, p, e in zip(gradients(fast, inputs, dy), slow, exact, strict=True):
        assert got.dtype == dtype
        assert_no_worse(got, plain=p, exact=e)


def test_rms_norm_casts_back_before_the_weight_and_gated_after():
    x, weight = torch.randn(9, 33).bfloat16(), torch.randn(33)
    normed = torch.nn.functional.rms_norm(x.float(), (33,), eps=EPS)
    assert torch.equal(rms_norm(x, weight, EPS), normed.bfloat16() * weight)
    assert rms_norm(x, weight, EPS).dtype == torch.float32
    assert gated_rms_norm(x.float(), x, weight, EPS).dtype == torch.bfloat16


def test_l2norm_adds_eps_to_the_sum_under_the_root():
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert_close(l2norm(x, 11.0), x / 6.0, 1e-12)
    assert_close(l2norm(torch.zeros(2, 5)), torch.zeros(2, 5), 0.0)


@NAMES
def test_b22_strided_inputs_and_gradients(name):
    fast, _ = both(name)
    inputs, dy = arguments(name), torch.randn(SHAPE[0], 1, SHAPE[2], dtype=torch.float64)
    dy = dy.expand(SHAPE)
    want = gradients(fast, inputs, dy.contiguous())

    def spread(x):
        return torch.stack([x, x + 9], -1).flatten(-2)[..., ::2]

    strided = [spread(x.detach()) for x in inputs]
    assert not strided[0].is_contiguous()
    for got, right in zip(gradients(fast, strided, dy), want, strict=True):
        assert_close(got, right, 1e-12)


@NAMES
def test_b23_nothing_given_is_changed(name):
    fast, _ = both(name)
    inputs, dy = arguments(name), torch.randn(SHAPE, dtype=torch.float64)
    before = [x.detach().clone() for x in (*inputs, dy)]
    first, second = gradients(fast, inputs, dy), gradients(fast, inputs, dy)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip((*inputs, dy), before, strict=True))


@NAMES
def test_a_row_does_not_depend_on_later_rows(name):
    fast, _ = both(name)
    inputs = [x.detach() for x in arguments(name, torch.bfloat16, (1, 40, 24))]
    once = fast(*inputs)
    inputs[0][:, 17:] = 3
    assert torch.equal(fast(*inputs)[:, :17], once[:, :17])


def test_b97_a_norm_rounds_to_nearest():
    # a row of ones has the norm 1, so that the weight in [1, 2) is what gets rounded
    values = 1 + torch.rand(1_000_000)
    x = torch.ones(1, 1_000_000).bfloat16()
    for got in (gated_rms_norm(x, torch.full_like(x, 100), values, 0.0), values[None].bfloat16()):
        ulp = ((got.double() - values.double()) / 2**-7).mean()
        assert abs(float(ulp)) < 0.002  # its own spread is 0.0003; truncation: -0.5
    pair = torch.tensor([(1 + 2**-8) * (1 + 2**-9)])
    one = torch.ones(1, 1).bfloat16()
    assert gated_rms_norm(one, one * 100, pair, 0.0).item() == 1.0078125


def test_b97_seventy_two_residual_additions_do_not_shrink():
    stream = torch.ones(1024, 256).bfloat16()
    weight = torch.full((256,), 0.02)
    for _ in range(72):
        stream = stream + rms_norm(torch.randn(1024, 256).bfloat16(), weight.bfloat16(), 0.0)
    # the mean of these numbers spreads by 0.0003; truncation: 0.83
    assert abs(float(stream.double().mean()) - 1) < 2e-3


def test_a_weight_of_another_width_is_refused():
    with pytest.raises(ShapeError, match=r"weight must be \[7\]"):
        inspect.unwrap(rms_norm)(torch.ones(3, 7), torch.ones(5), EPS)

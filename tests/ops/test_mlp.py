"""SwiGLU and SiTU-GLU against their references."""

import pytest
import torch

from closeness import assert_close, assert_no_worse
from interlace.ops.mlp import situ_glu, situ_glu_reference, swiglu, swiglu_reference

BOTH = pytest.mark.parametrize(
    ("fast", "plain"),
    [(swiglu, swiglu_reference), (situ_glu, situ_glu_reference)],
    ids=["swiglu", "situ"],
)


def gradients(fn, given, dy):
    given = [x.detach().requires_grad_() for x in given]
    out = fn(*given)
    return [out.detach(), *torch.autograd.grad(out, given, dy)]


def inputs(dtype):
    return [(3 * torch.randn(3, 5, 7)).to(dtype) for _ in range(3)]


@BOTH
def test_float64_equals_the_reference_and_its_autograd(fast, plain):
    gate, up, dy = inputs(torch.float64)
    want = gradients(lambda g, u: plain(g, u, compute_dtype=torch.float64), (gate, up), dy)
    for got, right in zip(gradients(fast, (gate, up), dy), want, strict=True):
        assert_close(got, right, 1e-10)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_is_no_worse_than_the_plain_way(fast, plain, dtype):
    gate, up, dy = inputs(dtype)
    wide = [x.double() for x in (gate, up)]
    exact = gradients(lambda g, u: plain(g, u, compute_dtype=torch.float64), wide, dy.double())
    slow = gradients(
        (lambda g, u: torch.nn.functional.silu(g) * u) if fast is swiglu else plain, (gate, up), dy
    )
    for got, p, e in zip(gradients(fast, (gate, up), dy), slow, exact, strict=True):
        assert got.dtype == dtype
        assert_no_worse(got, plain=p, exact=e)


def test_b22_b23_strided_inputs_are_read_right_and_left_unchanged():
    gate, up, dy = inputs(torch.float64)
    want = gradients(swiglu, (gate, up), dy[:1].expand(3, 5, 7).contiguous())
    joined = torch.stack([gate, up], -1)
    before = joined.clone()
    got = gradients(swiglu, joined.unbind(-1), dy[:1].expand(3, 5, 7))
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, 1e-12)
    assert torch.equal(joined, before)


def test_situ_by_hand():
    g, u = torch.tensor([3.0]).double(), torch.tensor([-50.0]).double()
    capped = 4 * torch.tanh(g / 4) / (1 + torch.exp(-g))
    assert_close(situ_glu(g, u, 4.0, 25.0), capped * 25 * torch.tanh(u / 25), 1e-12)
    assert_close(situ_glu(g, u, 4.0, None), capped * u, 1e-12)
    assert_close(situ_glu(g, u, None, None), torch.tanh(g) / (1 + torch.exp(-g)) * u, 1e-12)


@pytest.mark.parametrize(("beta", "linear_beta"), [(4.0, None), (None, None), (0.7, 3.0)])
def test_situ_gradients_with_and_without_caps(beta, linear_beta):
    gate, up, dy = inputs(torch.float64)
    want = gradients(
        lambda g, u: situ_glu_reference(g, u, beta, linear_beta, compute_dtype=torch.float64),
        (gate, up),
        dy,
    )
    got = gradients(lambda g, u: situ_glu(g, u, beta, linear_beta), (gate, up), dy)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, 1e-10)


def test_situ_keeps_three_tensors_for_its_backward():
    gate, up, _ = (x.requires_grad_() for x in inputs(torch.float32))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        situ_glu(gate, up)
    assert len(kept) == 3

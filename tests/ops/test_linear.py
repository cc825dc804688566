"""Products with weights as they are kept: every way against float64, bits, and bad input."""

from functools import partial

import pytest
import torch

from closeness import assert_close, assert_no_worse
from interlace.errors import BackendUnavailable, InputError, ShapeError
from interlace.ops import mxfp4
from interlace.ops.linear import (
    Packed,
    gated,
    linear,
    linear_reference,
    project,
    quantize,
    quantize_reference,
    unpack,
)
from interlace.ops.linear.native_form import linear_native
from interlace.ops.mlp import situ_glu, swiglu
from interlace.ops.mxfp4.linear import expand
from interlace.ops.native import core

native = core()
needs_native = pytest.mark.skipif(native is None, reason="the native core was not built here")
FORMATS = ["bf16", "int8", "int4", "mxfp4"]


@pytest.fixture(params=native.levels() if native else [])
def level(request):
    before = native.level()
    native.use_level(request.param)
    yield request.param
    native.use_level(before)


def make(form, out, width):
    """A weight in its form, and its values in float64."""
    weight = torch.randn(out, width) * width**-0.5
    if form == "bf16":
        return weight.bfloat16(), weight.bfloat16().double()
    if form == "mxfp4":
        packed = Packed(*mxfp4.quantize(weight))
        return packed, mxfp4.unpack(*packed, torch.float64)
    packed = quantize(weight, 8 if form == "int8" else 4)
    return packed, unpack(packed, torch.float64)


@needs_native
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("rows", "out", "groups"), [(1, 1, 1), (3, 17, 2), (9, 33, 3), (15, 5, 34)]
)
def test_products_of_every_form(level, form, rows, out, groups):
    """34 groups are more columns than stay in a core's nearest cache for eight rows."""
    torch.manual_seed(rows)
    x = torch.randn(rows, 32 * groups).bfloat16()
    weight, exact = make(form, out, 32 * groups)
    kept = [t.clone() for t in (x, *weight)]
    got = linear_native(x, [weight])[0]
    want = x.double() @ exact.T
    assert_no_worse(got, plain=linear_reference(x, exact), exact=want)
    assert all(map(torch.equal, kept, (x, *weight)))


@needs_native
@pytest.mark.parametrize("width", [1, 2, 7, 31, 33, 63, 65, 130, 1025])
def test_dense_rows_of_any_width(level, width):
    torch.manual_seed(width)
    x, weight = torch.randn(6, width).bfloat16(), torch.randn(19, width).bfloat16()
    out = torch.full((6, 24), float("nan"))
    native.linear(x, [weight], [out[:, :19]])
    assert_close(out[:, :19], x.double() @ weight.double().T, 1e-6)
    assert out[:, 19:].isnan().all()


@needs_native
def test_there_may_be_no_rows_and_no_columns():
    x, weight = torch.randn(0, 8).bfloat16(), torch.randn(3, 8).bfloat16()
    assert linear(x, weight).shape == (0, 3)
    assert linear(x, weight[:0]).shape == (0, 0)
    empty = linear_native(torch.empty(2, 0).bfloat16(), [torch.empty(3, 0).bfloat16()])[0]
    assert torch.equal(empty, torch.zeros(2, 3).bfloat16())


@needs_native
@pytest.mark.parametrize("form", FORMATS)
def test_a_row_is_its_own(level, form):
    torch.manual_seed(1)
    x = torch.randn(11, 1120).bfloat16()
    weight, _ = make(form, 18, 1120)
    together = linear_native(x, [weight])[0]
    for row in range(11):
        assert torch.equal(linear_native(x[row : row + 1], [weight])[0][0], together[row])
    other = make("bf16", 21, 1120)[0]
    assert torch.equal(linear_native(x, [other, weight, other])[1], together)


@needs_native
def test_threads_change_no_bit():
    torch.manual_seed(2)
    x, weight = torch.randn(2, 640).bfloat16(), torch.randn(999, 640).bfloat16()
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(linear_native(x, [weight])[0])
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@needs_native
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("situ", [None, (4.0, 25.0), (None, None), (1.5, None)])
def test_gate_and_up_in_one(level, form, situ):
    torch.manual_seed(3)
    x = (4 * torch.randn(5, 96)).bfloat16()
    gate, exact_gate = make(form, 35, 96)
    up, exact_up = make(form, 35, 96)
    glu = swiglu if situ is None else partial(situ_glu, beta=situ[0], linear_beta=situ[1])
    want = glu(x.double() @ exact_gate.T, x.double() @ exact_up.T)
    plain = glu(linear_reference(x, exact_gate), linear_reference(x, exact_up))
    got = gated(x, gate, up, situ=situ, backend="linear.native")
    assert_no_worse(got, plain=plain, exact=want)
    how = expand if form == "mxfp4" else unpack
    torch_way = gated(x, gate, up, situ=situ, expand=how, backend="linear.torch")
    assert_no_worse(torch_way, plain=plain, exact=want)


@needs_native
def test_extremes_of_the_gate(level):
    """Saturated, tiny and zero arguments; the largest are far beyond where e^x overflows."""
    sizes = torch.tensor([0.0, 1e-20, 1e-3, 0.2, 0.26, 3.0, 30.0, 200.0, 3e4])
    values = torch.cat([sizes, -sizes])
    one, x = torch.ones(18, 1).bfloat16(), torch.ones(1, 1).bfloat16()
    weight = values[:, None].bfloat16()
    for situ in (None, (4.0, 25.0)):
        glu = swiglu if situ is None else partial(situ_glu, beta=situ[0], linear_beta=situ[1])
        for gate, up in ((weight, one), (one, weight), (weight, weight)):
            got = gated(x, gate, up, situ=situ, backend="linear.native")
            want = glu(gate.double().T, up.double().T)
            assert torch.allclose(got.double(), want, rtol=2.0**-8, atol=1e-30)


@needs_native
def test_what_is_no_number_stays_none():
    x, weight = torch.ones(1, 64).bfloat16(), torch.ones(2, 64).bfloat16()
    weight[0, 5] = float("nan")
    weight[1, 40] = float("inf")
    got = linear_native(x, [weight])[0]
    assert got[0, 0].isnan()
    assert got[0, 1].isinf()
    codes, scale = mxfp4.quantize(torch.ones(1, 64))
    scale[0, 1] = 255
    assert linear_native(x, [Packed(codes, scale)])[0].isnan().all()


@needs_native
def test_strided_views_are_read_as_they_are():
    torch.manual_seed(4)
    wide = torch.full((9, 80), float("nan")).bfloat16()
    wide[:, :64] = torch.randn(9, 64).bfloat16()
    x = torch.randn(2, 3, 128).bfloat16()[..., ::2]
    got = linear_native(x, [wide[:, :64]])[0]
    assert torch.equal(got, linear_native(x.contiguous(), [wide[:, :64].contiguous()])[0])
    codes, scale = quantize(torch.randn(8, 96), 8)
    part = Packed(codes[::2, 32:], scale[::2, 1:])
    rows = torch.randn(1, 64).bfloat16()
    same = Packed(part.codes.contiguous(), part.scale.contiguous())
    assert torch.equal(linear_native(rows, [part])[0], linear_native(rows, [same])[0])


def weights_of(form):
    return make(form, 4, 64)[0]


@needs_native
@pytest.mark.parametrize(
    ("x", "weights", "outs", "match"),
    [
        (torch.ones(2, 64), ["bf16"], 1, "x must be bfloat16"),
        (torch.ones(64).bfloat16(), ["bf16"], 1, r"x must be bfloat16 \[M, D\]"),
        (torch.ones(2, 32).bfloat16(), ["bf16"], 1, r"weights\[0\] has D = 64"),
        (torch.ones(2, 32).bfloat16(), ["bf16", "int4"], 2, r"weights\[0\] has D = 64"),
        (torch.ones(2, 32).bfloat16(), ["int4"], 1, r"weights\[0\] \(codes\) must be uint8"),
        (torch.ones(2, 65).bfloat16(), ["int8"], 1, "must be a multiple of 32"),
        (torch.ones(2, 64).bfloat16(), ["bf16"] * 9, 9, "1 to 8 weights, got 9"),
        (torch.ones(2, 64).bfloat16(), ["bf16"], 2, "outs must hold 1"),
        (torch.ones(2, 64).bfloat16(), [], 0, "1 to 8 weights, got 0"),
    ],
)
def test_bad_calls_are_refused_by_name(x, weights, outs, match):
    rows = [torch.empty(2, 4) for _ in range(outs)]
    with pytest.raises(ValueError, match=match):
        native.linear(x, [weights_of(form) for form in weights], rows)


@needs_native
def test_bad_outputs_and_pairs_are_refused_by_name():
    x, weight = torch.ones(2, 64).bfloat16(), weights_of("bf16")
    with pytest.raises(ValueError, match=r"outs\[0\] has F0 = 5 where weights\[0\] has 4"):
        native.linear(x, [weight], [torch.empty(2, 5)])
    with pytest.raises(ValueError, match=r"rows of outs\[0\] must not overlap"):
        native.linear(x, [weight], [torch.empty(4).expand(2, 4)])
    with pytest.raises(ValueError, match="got a tuple of 3"):
        native.linear(x, [(weight, weight, weight)], [torch.empty(2, 4)])
    codes, scale = weights_of("int8")
    with pytest.raises(ValueError, match=r"\(scales\) must be bfloat16 for int8"):
        native.linear(x, [(codes, scale.to(torch.uint8))], [torch.empty(2, 4)])
    with pytest.raises(ValueError, match="glu takes two weights"):
        native.linear(x, [weight], [torch.empty(2, 4)], "swish")
    with pytest.raises(ValueError, match="glu must be"):
        native.linear(x, [weight, weight], [torch.empty(2, 4)], "gelu")


@pytest.mark.parametrize("bits", [8, 4])
def test_codes_are_the_nearest_for_their_scales(bits):
    torch.manual_seed(bits)
    weight = torch.randn(5, 96)
    weight[0, :32] = 0
    weight[1] *= 1e-4
    weight[2, 3] = 40.0
    packed = quantize(weight, bits)
    exact = unpack(packed, torch.float64)
    assert torch.equal(exact, quantize_reference(weight, bits, packed.scale))
    assert not exact[0, :32].any()
    assert torch.equal(quantize(exact.float(), bits).scale[0], packed.scale[0])
    bits_each = (packed.codes.nbytes + packed.scale.nbytes) * 8 / weight.numel()
    assert bits_each == bits + 0.5


def test_rounding_loses_what_it_should():
    """Of normal weights: int8 half a step of 1/127 of the largest, int4 a little under a tenth."""
    torch.manual_seed(9)
    weight = torch.randn(64, 1024)
    for bits, most, least in ((8, 0.0065, 0.004), (4, 0.095, 0.07)):
        error = (unpack(quantize(weight, bits), torch.float32) - weight).norm() / weight.norm()
        assert least < error < most
    # a smaller scale than that of the largest element serves the others
    plain = weight.unflatten(1, (-1, 32))
    scale = plain.abs().amax(-1, keepdim=True) / 7
    rounded = (plain / scale).round() * scale
    assert error < (rounded - plain).norm() / weight.norm()


def test_many_rows_go_in_blocks(monkeypatch):
    weight = torch.randn(70, 64)
    whole = quantize(weight, 4)
    monkeypatch.setattr("interlace.ops.linear.codes.BLOCK", 640)
    assert all(map(torch.equal, whole, quantize(weight, 4)))


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_gradients_pass_through_codes(form):
    torch.manual_seed(5)
    weight, exact = make(form, 6, 64)
    x = torch.randn(3, 64, dtype=torch.float64, requires_grad=True)
    linear(x, weight).square().sum().backward()
    want = 2 * (x @ exact.T) @ exact
    assert_close(x.grad, want, 1e-10)


def test_dense_weights_learn():
    x, weight = torch.randn(3, 8).bfloat16(), torch.randn(5, 8).bfloat16().requires_grad_()
    project(x, (weight, weight))[1].sum().backward()
    assert weight.grad is not None
    with pytest.raises(BackendUnavailable, match=r"no backward|not built|turns the native"):
        linear(x, weight, backend="linear.native")


def test_bad_weights_are_refused():
    with pytest.raises(ShapeError, match="multiple of 32"):
        quantize(torch.randn(2, 33), 8)
    with pytest.raises(InputError, match="8 or 4 bits, got 2"):
        quantize(torch.randn(2, 32), 2)
    with pytest.raises(InputError, match="finite"):
        quantize(torch.full((1, 32), float("nan")), 4)
    codes, scale = quantize(torch.randn(2, 64), 4)
    with pytest.raises(ShapeError, match="pass the two of one matrix"):
        unpack(Packed(codes, scale[:, :1]))
    for dtype in (torch.bfloat16, torch.float32):
        with pytest.raises(ShapeError, match="for this"):
            linear(torch.randn(1, 32).to(dtype), Packed(codes, scale))

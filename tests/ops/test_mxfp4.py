"""MXFP4 against its number-by-number reference, and against bytes worked out by hand."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from closeness import assert_close, assert_no_worse
from interlace.errors import ShapeError
from interlace.ops import mxfp4
from interlace.ops.linear import packed as packed_form
from interlace.ops.mxfp4 import codes


def packed_weight(out=5, groups=3, low=110, high=140):
    packed = torch.randint(0, 256, (out, 16 * groups), dtype=torch.uint8)
    return packed, torch.randint(low, high, (out, groups), dtype=torch.uint8)


def test_bytes_by_hand():
    # 0x21: code 1 first, then code 2; scale byte 127 is one, 128 two
    packed = torch.full((1, 32), 0x21, dtype=torch.uint8)
    packed[0, 16:] = 0xF7
    weight = mxfp4.unpack(packed, torch.tensor([[127, 128]], dtype=torch.uint8), torch.float32)
    assert weight[0, :4].tolist() == [0.5, 1.0, 0.5, 1.0]
    assert weight[0, 32:35].tolist() == [12.0, -12.0, 12.0]
    smallest = mxfp4.unpack(packed[:, :16], torch.zeros(1, 1, dtype=torch.uint8), torch.float32)
    assert smallest[0, 1].item() == 2.0**-127


def test_every_byte_and_scale_unpacks_as_the_reference_says():
    packed = torch.arange(256, dtype=torch.uint8).view(16, 16)
    for scale in (0, 1, 100, 127, 200, mxfp4.LARGEST_SCALE):
        scales = torch.full((16, 1), scale, dtype=torch.uint8)
        want = mxfp4.unpack_reference(packed, scales)
        for dtype in (torch.float64, torch.float32, torch.bfloat16):
            got = mxfp4.unpack(packed, scales, dtype)
            assert torch.equal(got.double(), want)
            assert torch.equal(torch.signbit(got), torch.signbit(want))  # minus zero too


@settings(max_examples=40, deadline=None)
@given(
    out=st.integers(1, 4),
    groups=st.integers(1, 3),
    size=st.integers(-60, 60),
    seed=st.integers(0, 10**6),
)
def test_quantize_takes_the_nearest(out, groups, size, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, 32 * groups, generator=generator, dtype=torch.float64) * 2.0**size
    # ties, zeros of both signs, a group of zeros
    weight[0, :8] = torch.tensor([0.25, -0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.0]) * 2.0**size
    weight[-1, -32:] = 0
    packed, scale = mxfp4.quantize(weight)
    want, want_scale = mxfp4.quantize_reference(weight)
    assert torch.equal(scale, want_scale)
    got = mxfp4.unpack(packed, scale, torch.float64)
    assert torch.equal(got, want)
    assert torch.equal(torch.signbit(got), torch.signbit(want))


def test_what_was_packed_packs_again_to_the_same_bytes():
    packed, scale = packed_weight(out=7)
    packed[:, ::16] = 0x66  # 4 and 4: the size that the scale rule looks for
    packed[packed & 7 == 7] = 0
    packed[packed >> 4 & 7 == 7] = 0  # no 6: a largest of 6 would take the next scale
    again, again_scale = mxfp4.quantize(mxfp4.unpack(packed, scale, torch.float32))
    assert torch.equal(again, packed)
    assert torch.equal(again_scale, scale)


@pytest.mark.parametrize(
    ("largest", "byte"),
    [
        (4.0, 127),
        (5.99, 127),
        (6.0, 128),
        (3.1, 127),
        (2.99, 126),
        (12.0, 129),
        (1e-45, 0),
        (1e38, 251),
    ],
)
def test_scale_rule(largest, byte):
    weight = torch.zeros(1, 32, dtype=torch.float64)
    weight[0, 3] = -largest
    assert mxfp4.quantize(weight)[1].item() == byte


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [(), (1,), (3, 2)])
def test_product_equals_that_of_the_expanded_weight(monkeypatch, dtype, rows):
    monkeypatch.setattr(packed_form, "BLOCK", 2 * 96)  # two rows at a time, and one left over
    packed, scale = packed_weight(low=120, high=128)
    x = torch.randn(*rows, 96, dtype=dtype, requires_grad=True)
    weight = mxfp4.unpack_reference(packed, scale)
    got = mxfp4.mxfp4_linear(x, packed, scale)
    exact = x.detach().double() @ weight.T
    plain = x.detach() @ weight.to(dtype).T
    assert got.dtype == dtype
    assert_no_worse(got, plain=plain, exact=exact)
    dy = torch.randn_like(got)
    (dx,) = torch.autograd.grad(got, x, dy)
    assert_no_worse(dx, plain=dy @ weight.to(dtype), exact=dy.double() @ weight)


def test_swapped_nibbles_would_be_seen(monkeypatch):
    packed, scale = packed_weight(low=127, high=128)
    x = torch.randn(4, 96)
    want = x.double() @ mxfp4.unpack_reference(packed, scale).T
    assert_close(mxfp4.mxfp4_linear(x, packed, scale), want, 1e-5)
    swapped = (packed >> 4) | (packed << 4)
    with pytest.raises(AssertionError):
        assert_close(mxfp4.mxfp4_linear(x, swapped, scale), want, 0.1)


def test_what_does_not_belong_together_is_refused():
    packed, scale = packed_weight()
    for p, s in (
        (packed, scale[:, :2]),
        (packed[:4], scale),
        (packed.int(), scale),
        (packed[0], scale),
    ):
        with pytest.raises(ShapeError, match="packed weights must be uint8"):
            codes.check_packed(p, s)
    with pytest.raises(ShapeError, match=r"\[\.\.\., 96\]"):
        mxfp4.mxfp4_linear(torch.randn(2, 95), packed, scale)
    for width in (0, 33):
        with pytest.raises(ShapeError, match="multiple of 32"):
            mxfp4.quantize(torch.randn(2, width))

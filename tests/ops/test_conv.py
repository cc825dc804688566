"""The short convolution: against its reference, in pieces, padded, packed."""

import inspect
from itertools import pairwise

import pytest
import torch

from closeness import assert_close, assert_no_worse
from interlace.errors import ShapeError
from interlace.ops.conv import short_conv, short_conv_reference

DOCUMENTS = [5, 1, 2, 64, 3]


def inputs(batch=2, tokens=11, channels=7, width=4, dtype=torch.float64, state=True):
    x = torch.randn(batch, tokens, channels, dtype=torch.float64).to(dtype)
    weight = torch.randn(channels, width, dtype=torch.float64).to(dtype)
    past = torch.randn(batch, width - 1, channels, dtype=torch.float64).to(dtype)
    return x, weight, past if state else None


def gradients(fn, given):
    given = [x.detach().requires_grad_() for x in given]
    out = [y for y in fn(*given) if y.numel()]
    weights = [torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y) for y in out]
    return [*out, *torch.autograd.grad(out, given, weights)]


def reference(x, weight, state):
    return short_conv_reference(x, weight, state=state, compute_dtype=torch.float64)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 11])
@pytest.mark.parametrize("activation", [True, False])
def test_equals_the_reference_with_gradients(tokens, width, activation):
    given = inputs(tokens=tokens, width=width)
    fast = gradients(lambda x, w, s: short_conv(x, w, state=s, activation=activation), given)
    slow = gradients(
        lambda x, w, s: short_conv_reference(
            x, w, state=s, activation=activation, compute_dtype=torch.float64
        ),
        given,
    )
    for got, want in zip(fast, slow, strict=True):
        assert_close(got, want, 1e-10)


def test_equals_a_library_convolution():
    x, weight, _ = inputs()
    wide = torch.nn.functional.conv1d(x.mT, weight[:, None], padding=3, groups=7)[..., :11].mT
    assert_close(short_conv(x, weight)[0], torch.nn.functional.silu(wide), 1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_low_precision_is_no_worse_than_the_plain_way(dtype):
    given = inputs(dtype=dtype, tokens=37)
    exact = gradients(reference, [x.double() for x in given])

    def plain(x, w, s):
        joined = torch.cat([s, x], 1)
        y = torch.nn.functional.conv1d(joined.mT, w[:, None], groups=7).mT
        return torch.nn.functional.silu(y), joined[:, -3:]

    slow, fast = (
        gradients(plain, given),
        gradients(lambda x, w, s: short_conv(x, w, state=s), given),
    )
    for got, p, e in zip(fast, slow, exact, strict=True):
        assert got.dtype == dtype
        assert_no_worse(got, plain=p, exact=e)


def test_float32_taps_of_a_bfloat16_model_are_not_narrowed():
    x, weight, state = inputs(dtype=torch.bfloat16)
    weight = weight.float() + 1e-4
    y, window = short_conv(x, weight, state=state)
    assert (y.dtype, window.dtype) == (torch.bfloat16, torch.bfloat16)
    exact = short_conv_reference(x.double(), weight.double(), state=state.double())[0]
    assert_close(y, exact, 4e-3)


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 8, 10])
def test_any_split_gives_the_same_outputs_and_state(cut):
    x, weight, state = inputs()
    whole, last = short_conv(x, weight, state=state)
    first, middle = short_conv(x[:, :cut], weight, state=state)
    second, end = short_conv(x[:, cut:], weight, state=middle)
    assert_close(torch.cat([first, second], 1), whole, 1e-12)
    assert torch.equal(end, last)


@pytest.mark.parametrize("with_state", [True, False])
def test_padded_rows_keep_their_own_last_inputs(with_state):
    x, weight, state = inputs(batch=5, tokens=6, state=with_state)
    lengths = torch.tensor([0, 1, 2, 4, 6])
    x = x.masked_fill(torch.arange(6)[None, :, None] >= lengths[:, None, None], 1e30)
    y, window = short_conv(x, weight, state=state, lengths=lengths)
    for row, n in enumerate(lengths.tolist()):
        past = None if state is None else state[row : row + 1]
        alone, last = short_conv(x[row : row + 1, :n], weight, state=past)
        assert_close(y[row : row + 1, :n], alone, 1e-12)
        assert torch.equal(window[row], last[0])


def packed(x, weight, boundaries):
    return short_conv(x, weight, cu_seqlens=torch.tensor(boundaries, dtype=torch.int32))[:1]


def alone(x, weight, boundaries):
    return [torch.cat([short_conv(x[:, a:b], weight)[0] for a, b in pairwise(boundaries)], 1)]


def test_b14_packed_documents_equal_themselves_alone():
    boundaries = torch.tensor([0, *DOCUMENTS]).cumsum(0).tolist()
    x, weight, _ = inputs(batch=1, tokens=boundaries[-1])
    want = gradients(lambda x, w: alone(x, w, boundaries), (x, weight))
    got = gradients(lambda x, w: packed(x, w, boundaries), (x, weight))
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, 1e-10)
    # without the reset the same comparison is red
    leaking = gradients(lambda x, w: packed(x, w, [0, boundaries[-1]]), (x, weight))
    for a, b in zip(leaking, want, strict=True):
        assert (a - b).abs().max() > 0.1


def test_packed_segments_start_from_their_states_and_return_them():
    boundaries = [0, 5, 6, 6, 14, 15, 22]
    x, weight, _ = inputs(batch=2, tokens=11)
    boundaries = sorted({*boundaries, 11})
    boundaries.insert(3, 6)
    states = torch.randn(len(boundaries) - 1, 3, 7, dtype=torch.float64)
    given = (x, weight, states)
    cu = torch.tensor(boundaries)

    def one_by_one(x, w, s):
        flat, out = x.reshape(1, 22, 7), []
        for i, (a, b) in enumerate(pairwise(boundaries)):
            out.append(short_conv(flat[:, a:b], w, state=s[i : i + 1]))
        y, last = zip(*out, strict=True)
        return torch.cat(y, 1).view_as(x), torch.cat(last)

    want = gradients(one_by_one, given)
    got = gradients(lambda x, w, s: short_conv(x, w, state=s, cu_seqlens=cu), given)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, 1e-10)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
@pytest.mark.parametrize("offsets", [[0, 10], [1, 11], [0, 5, 3, 11], [0, 12]], ids=str)
def test_b16_offsets_that_do_not_cover_the_rows_are_refused(offsets, dtype):
    x, weight, _ = inputs(batch=1)
    with pytest.raises(ShapeError, match="cu_seqlens must start at 0"):
        short_conv(x, weight, cu_seqlens=torch.tensor(offsets, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_b16_an_empty_segment_passes_its_state_through(dtype):
    x, weight, _ = inputs(batch=1)
    states = torch.randn(3, 3, 7, dtype=torch.float64)
    cu = torch.tensor([0, 0, 11, 11], dtype=dtype)
    y, windows = short_conv(x, weight, state=states, cu_seqlens=cu)
    want, last = short_conv(x, weight, state=states[1:2])
    assert_close(y, want, 1e-12)
    assert torch.equal(windows, torch.cat([states[:1], last, states[2:]]))


def test_b15_offsets_and_lengths_together_are_refused():
    x, weight, _ = inputs(batch=1)
    with pytest.raises(ShapeError, match="not be given together"):
        short_conv(x, weight, lengths=torch.tensor([11]), cu_seqlens=torch.tensor([0, 11]))


def test_b20_a_state_inside_a_bigger_buffer_and_its_neighbours_are_left_alone():
    x, weight, state = inputs(tokens=1)
    buffer = torch.full((4, 5, 14), 7.0, dtype=torch.float64)
    view = buffer[1:3, 1:4, ::2]
    view.copy_(state)
    before = buffer.clone()
    got, want = short_conv(x, weight, state=view), short_conv(x, weight, state=state)
    assert torch.equal(buffer, before)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
        assert a.untyped_storage().data_ptr() != buffer.untyped_storage().data_ptr()


def test_b22_b23_strided_inputs_are_read_right_and_left_unchanged():
    given = inputs()
    want = gradients(lambda x, w, s: short_conv(x, w, state=s), given)
    strided = [torch.stack([x, x + 9], -1).flatten(-2)[..., ::2] for x in given]
    strided[0] = strided[0].mT.contiguous().mT
    before = [x.clone() for x in strided]
    got = gradients(lambda x, w, s: short_conv(x, w, state=s), strided)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, 1e-12)
    assert all(torch.equal(a, b) for a, b in zip(strided, before, strict=True))


@pytest.mark.parametrize("offsets", [None, [0, 4, 11, 22]], ids=str)
def test_b22_b23_gradients_that_come_strided_are_read_right_and_left_unchanged(offsets):
    x, weight, _ = inputs()
    cu = None if offsets is None else torch.tensor(offsets)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    y, _ = short_conv(*leaves, cu_seqlens=cu)
    one = torch.randn(2, 1, 1, dtype=y.dtype).expand(y.shape)
    turned = torch.randn(2, 7, 11, dtype=y.dtype).mT
    spread = torch.randn(2, 11, 14, dtype=y.dtype)[..., ::2]
    for dy in (one, turned, spread):
        assert not dy.is_contiguous()
        before = dy.clone()
        want = torch.autograd.grad(y, leaves, dy.contiguous(), retain_graph=True)
        got = torch.autograd.grad(y, leaves, dy, retain_graph=True)
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, 1e-12)
        assert torch.equal(dy, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_later_tokens_change_no_earlier_bit(dtype):
    x, weight, state = inputs(dtype=dtype, tokens=40)
    once = short_conv(x, weight, state=state)[0]
    x[:, 23:] = 5
    assert torch.equal(short_conv(x, weight, state=state)[0][:, :23], once[:, :23])


def test_shapes_that_do_not_fit_are_named():
    x, weight, state = inputs()
    with pytest.raises(ShapeError, match=r"state must be \[2, 3, 7\]"):
        inspect.unwrap(short_conv)(x, weight, state=state[:, :2].contiguous())
    with pytest.raises(ShapeError, match="weight"):
        inspect.unwrap(short_conv)(x, weight[:5])

"""Convolutions, decay and norms of a step in the native core: against float64, and bad input."""

import pytest
import torch

from closeness import assert_close, assert_no_worse
from interlace.errors import BackendUnavailable
from interlace.ops.conv import short_conv_reference, short_convs
from interlace.ops.delta_rule import kda_gate_reference, kda_gates
from interlace.ops.native import core
from interlace.ops.norm import (
    gated_rms_norm,
    gated_rms_norm_reference,
    rms_norm,
    rms_norm_reference,
)

native = core()
pytestmark = pytest.mark.skipif(native is None, reason="the native core was not built here")


@pytest.fixture(params=native.levels() if native else [])
def level(request):
    before = native.level()
    native.use_level(request.param)
    yield request.param
    native.use_level(before)


def draw_conv(batch, tokens, widths, taps, wide):
    xs = [torch.randn(batch, tokens, d).bfloat16() for d in widths]
    weights = [torch.randn(d, taps).to(torch.float32 if wide else torch.bfloat16) for d in widths]
    states = [torch.randn(batch, taps - 1, d).bfloat16() for d in widths]
    return xs, weights, states


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(
    ("batch", "tokens", "widths", "taps"),
    [
        (1, 1, (1,), 1),
        (2, 3, (17, 5, 33), 4),
        (3, 9, (16, 8, 4, 31), 2),
        (1, 5, (40,), 7),
        (2, 0, (3, 4), 3),
        (0, 2, (3,), 3),
    ],
)
def test_convolutions(level, batch, tokens, widths, taps, wide):
    torch.manual_seed(taps)
    xs, weights, states = draw_conv(batch, tokens, widths, taps, wide)
    kept = [t.clone() for t in (*xs, *weights, *states)]
    outs, windows = short_convs(xs, weights, states, backend="conv.native")
    for x, w, s, y, window in zip(xs, weights, states, outs, windows, strict=True):
        exact, _ = short_conv_reference(x.double(), w, state=s, compute_dtype=torch.float64)
        plain, _ = short_conv_reference(x, w, state=s)
        assert_no_worse(y, plain=plain, exact=exact)
        assert torch.equal(window, torch.cat([s, x], 1)[:, tokens:])
    assert all(map(torch.equal, kept, (*xs, *weights, *states)))
    plain_way = short_convs(xs, weights, states, backend="conv.channels_last")
    assert all(map(torch.equal, windows, plain_way[1]))


def test_a_token_and_a_row_are_their_own(level):
    torch.manual_seed(1)
    xs, weights, states = draw_conv(3, 6, (21,), 4, False)
    together = short_convs(xs, weights, states, backend="conv.native")[0][0]
    window, pieces = states, []
    for t in range(6):
        outs, window = short_convs([xs[0][:, t : t + 1]], weights, window, backend="conv.native")
        pieces.append(outs[0])
    assert torch.equal(torch.cat(pieces, 1), together)
    alone = short_convs([xs[0][1:2]], weights, [states[0][1:2]], backend="conv.native")[0][0]
    assert torch.equal(alone[0], together[1])


@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize(("rows", "heads", "key"), [(1, 1, 1), (3, 5, 7), (2, 3, 32), (4, 2, 50)])
def test_decays(level, bound, rows, heads, key):
    torch.manual_seed(key)
    z = (20 * torch.randn(rows, 1, heads, key)).bfloat16()
    z.view(-1)[0] = 0
    b = (10 * torch.randn(rows, 1, heads)).bfloat16()
    rate, bias = torch.randn(heads), torch.randn(heads, key)
    g, beta = kda_gates(z, b, rate, bias, bound, backend="gate.native")
    exact = kda_gate_reference(z, rate, bias, bound, compute_dtype=torch.float64)
    assert g.dtype == beta.dtype == torch.float32
    assert_close(g, exact, 1e-6)
    assert torch.allclose(g.double(), exact, rtol=1e-5, atol=1e-12)
    assert_close(beta, b.double().sigmoid(), 1e-6)


def test_decays_of_extreme_logits(level):
    z = torch.tensor([-3e38, -200.0, -90.0, -88.0, -20.0, 0.0, 20.0, 90.0, 3e4]).bfloat16()
    heads, zero = z.view(1, 1, 1, -1), torch.zeros(1)
    b = torch.zeros(1, 1, 1).bfloat16()
    for bound in (None, -5.0):
        g, _ = kda_gates(heads, b, zero, torch.zeros(1, 9), bound, backend="gate.native")
        exact = kda_gate_reference(
            heads, zero, torch.zeros(1, 9), bound, compute_dtype=torch.float64
        )
        assert torch.allclose(g.double(), exact.double(), rtol=1e-5, atol=1e-37)
        assert (g <= 0).all()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("width", [1, 3, 16, 67, 128])
def test_gated_norm(level, width, wide):
    torch.manual_seed(width)
    dtype = torch.float32 if wide else torch.bfloat16
    x, weight = torch.randn(2, 3, width, dtype=dtype), torch.randn(width, dtype=dtype)
    gate = (5 * torch.randn(2, 3, width)).bfloat16()
    got = gated_rms_norm(x, gate, weight, 1e-5, backend="norm.native")
    exact = gated_rms_norm_reference(x, gate.double(), weight, 1e-5, compute_dtype=torch.float64)
    plain = gated_rms_norm_reference(x, gate, weight, 1e-5)
    assert got.dtype == torch.bfloat16
    assert_no_worse(got, plain=plain, exact=exact)
    alone = gated_rms_norm(x[1:, 2:], gate[1:, 2:], weight, 1e-5, backend="norm.native")
    assert torch.equal(alone[0, 0], got[1, 2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norm(level, dtype):
    x, weight = torch.randn(2, 3, 67, dtype=dtype), torch.randn(67, dtype=dtype)
    got = rms_norm(x, weight, 1e-5, backend="norm.native")
    exact = rms_norm_reference(x.double(), weight.double(), 1e-5, compute_dtype=torch.float64)
    assert_no_worse(got, plain=rms_norm_reference(x, weight, 1e-5), exact=exact)
    part = rms_norm(x[..., ::1].mT.contiguous().mT, weight, 1e-5, backend="norm.native")
    assert torch.equal(part, got)


def test_what_the_core_does_not_take_is_refused_or_left_to_torch():
    x, weight = torch.randn(2, 8), torch.randn(8)
    with pytest.raises(BackendUnavailable, match="both in bfloat16 or both in float32"):
        rms_norm(x.double(), weight, 1e-5, backend="norm.native")
    with pytest.raises(BackendUnavailable, match="gate in bfloat16"):
        gated_rms_norm(x, x, weight, 1e-5, backend="norm.native")
    xs, weights, states = draw_conv(1, 2, (4,), 3, False)
    with pytest.raises(BackendUnavailable, match="inputs and windows in bfloat16"):
        short_convs([xs[0].float()], weights, states, backend="conv.native")
    with pytest.raises(BackendUnavailable, match="logits in bfloat16"):
        kda_gates(
            x.view(1, 2, 1, 8), x[:, :1].view(1, 2, 1), x[0, :1], x[:1], backend="gate.native"
        )
    with torch.enable_grad():
        assert rms_norm(x.requires_grad_(), weight, 1e-5).grad_fn is not None


def test_bad_calls_are_refused_by_name():
    xs, weights, states = draw_conv(1, 2, (4, 5), 3, False)
    outs, lasts = [torch.empty_like(x) for x in xs], [torch.empty_like(s) for s in states]
    with pytest.raises(ValueError, match=r"windows\[1\] has D1 = 4"):
        native.convolve(xs, weights, [states[0], states[0]], outs, lasts, True)
    with pytest.raises(ValueError, match=r"lasts\[0\] must not be windows\[0\]"):
        native.convolve(xs, weights, states, outs, states, True)
    with pytest.raises(ValueError, match="as many, got 2 and 1"):
        native.convolve(xs, weights[:1], states, outs, lasts, True)
    with pytest.raises(ValueError, match="1 to 4 inputs, got 0"):
        native.convolve([], [], [], [], [], True)
    with pytest.raises(ValueError, match="W must be 1 to 16, got 17"):
        native.convolve(xs[:1], [torch.ones(4, 17)], states[:1], outs[:1], lasts[:1], True)
    z, b = torch.ones(2, 6).bfloat16(), torch.ones(2, 3).bfloat16()
    g, beta = torch.empty(2, 6), torch.empty(2, 3)
    with pytest.raises(ValueError, match="bound must be negative"):
        native.decay(z, b, torch.ones(3), torch.ones(6), g, beta, 1.0)
    with pytest.raises(ValueError, match="multiple of H"):
        native.decay(
            z,
            b[:, :1].expand(2, 4).contiguous(),
            torch.ones(4),
            torch.ones(6),
            g,
            torch.empty(2, 4),
            0.0,
        )
    with pytest.raises(ValueError, match=r"gate has V = 6 where x has 5"):
        native.gated_norm(torch.ones(2, 5), z, torch.ones(5), z, 1e-5)


def test_loops_that_measure_the_machine():
    data = torch.ones(100_003)
    assert native.limit("read", data, 0) == 400_012
    assert torch.equal(data, torch.ones(100_003))
    assert native.limit("read_write", data, 0) == 800_024
    assert torch.equal(data, torch.full((100_003,), -1.0))
    one = native.limit("dot", None, 10)
    assert native.limit("dot", None, 1000) == 100 * one > 0
    assert native.limit("multiply", None, 10) > 0
    with pytest.raises(ValueError, match="loop must be"):
        native.limit("write", data, 0)
    with pytest.raises(ValueError, match="must not be negative"):
        native.limit("dot", None, -1)
    with pytest.raises(ValueError, match=r"data must be .*float32 \[N\]"):
        native.limit("read", None, 0)

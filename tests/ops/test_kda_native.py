"""The native delta rule against the float64 recurrence, on every instruction set."""

from itertools import pairwise

import pytest
import torch
from delta_rule_calls import exact, make_call
from torch.nn.functional import normalize

from closeness import assert_close, assert_no_worse
from interlace.errors import BackendUnavailable, ShapeError
from interlace.ops.delta_rule import kda, kda_reference
from interlace.ops.delta_rule.choose import MANY_TOKENS
from interlace.ops.delta_rule.native_form import kda_native_chunk, kda_native_step
from interlace.ops.native import core

native = core()
pytestmark = pytest.mark.skipif(native is None, reason="the native core was not built here")
BF16 = torch.bfloat16


@pytest.fixture(params=native.levels() if native else [])
def level(request):
    before = native.level()
    native.use_level(request.param)
    yield request.param
    native.use_level(before)


def draw(*sizes, dtype=torch.float32, **options):
    """A call with q, k and v in `dtype`, the rest in float32."""
    call = make_call(*sizes, dtype=torch.float32, **options)
    return [x.to(dtype) for x in call[:3]] + call[3:]


def judge(run, call, **options):
    """Held to docs/numerics.md: in float32 to 1e-5, in bf16 to twice the plain way's error."""
    out, last = run(*call[:5], state=call[5], **options)
    want, after = exact(call)
    assert out.dtype == call[2].dtype
    if out.dtype == BF16:
        plain, kept = kda_reference(*call[:5], state=call[5], compute_dtype=BF16)
        assert_no_worse(out, plain=plain, exact=want, what="out")
        assert_close(last, after, 2 * float((kept - after).abs().max()) + 4e-3, "last")
    else:
        assert_close(out, want, 1e-5, "out")
        assert_close(last, after, 1e-5, "last")


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1, 1),
        (2, 1, 3, 20, 12),
        (1, 1, 9, 7, 256),  # whole blocks of columns: heads follow each other through memory
        (3, 1, 6, 130, 128),
        (2, 2, 3, 5, 7),
        (1, 3, 2, 128, 33),
        (1, 4, 5, 129, 31),
        (2, 5, 3, 15, 32),
        (1, 31, 2, 17, 50),
        (1, 32, 2, 16, 65),
        (1, 33, 3, 127, 16),
        (2, 67, 2, 24, 40),
    ],
    ids=str,
)
def test_it_is_the_recurrence(level, sizes, dtype):
    call = draw(*sizes, dtype=dtype)
    before = [x.clone() for x in call]
    judge(kda_native_step, call)
    if dtype == BF16:
        judge(kda_native_chunk, call)
    assert all(map(torch.equal, before, call))


@pytest.mark.parametrize("T", [1, 67])
@pytest.mark.parametrize("same_keys", [False, True], ids=["keys", "same-keys"])
@pytest.mark.parametrize("decay", [0.0, -1e-4, -1.0, -5.0, -20.0, -100.0])
def test_any_decay_and_equal_keys(decay, same_keys, T):
    call = draw(1, T, 3, 20, 12, decay=decay, same_keys=same_keys)
    judge(kda_native_step, call)
    if decay == 0.0:
        with_zeros, _ = kda_native_step(*call[:5], state=call[5])
        without, _ = kda_native_step(*call[:3], None, call[4], state=call[5])
        assert torch.equal(with_zeros, without)


@pytest.mark.parametrize("same_keys", [False, True], ids=["keys", "same-keys"])
@pytest.mark.parametrize("decay", [0.0, -1e-4, -1.0, -5.0, -20.0, -100.0])
def test_any_decay_and_equal_keys_in_bf16_products(decay, same_keys):
    for width in (20, 128):
        call = draw(1, 131, 3, width, 34, dtype=BF16, decay=decay, same_keys=same_keys)
        judge(kda_native_chunk, call)


@pytest.mark.parametrize("T", [1, 5])
def test_no_state_is_a_state_of_zeros(level, T):
    for width in (12, 128):
        call = draw(2, T, 3, 20, width)
        got = kda_native_step(*call[:5])
        want = kda_native_step(*call[:5], state=torch.zeros_like(call[5]))
        assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("T", [1, 6])
def test_unit_length_and_scale_within_the_call(level, T):
    call = draw(2, T, 3, 20, 12)
    raw = [5.0 * torch.randn_like(x) for x in call[:2]]
    raw[0][0, 0, 0] = 0.0  # a row of zeros stays one
    eps = 0.5
    q, k = (x.double() * torch.rsqrt(x.double().square().sum(-1, keepdim=True) + eps) for x in raw)
    out, last = kda_native_step(*raw, *call[2:5], state=call[5], unit_eps=eps, scale=0.3)
    rest = [x.double() for x in call[2:]]
    want, after = kda_reference(
        q, k, *rest[:3], state=rest[3], scale=0.3, compute_dtype=torch.float64
    )
    assert_close(out, want, 1e-5)
    assert_close(last, after, 1e-5)


@pytest.mark.parametrize("run", [kda_native_step, kda_native_chunk])
@pytest.mark.parametrize("width", [12, 128])
@pytest.mark.parametrize("T", [1, 37])
def test_rows_padding_and_threads_change_no_bit(level, T, width, run):
    ends = [T, 0, 1, T // 2, T]
    call = draw(len(ends), T, 6, 20, width, dtype=BF16)
    for row, end in enumerate(ends):
        for x in call[:5]:
            x[row, end:] = float("nan")  # what lies in the padding is not read
    lengths = torch.tensor(ends)
    out, last = run(*call[:5], state=call[5], lengths=lengths)
    for row, end in enumerate(ends):
        alone = [x[row : row + 1, :end] for x in call[:5]]
        want, after = run(*alone, state=call[5][row : row + 1])
        assert torch.equal(out[row : row + 1, :end], want)
        assert torch.equal(last[row : row + 1], after)
        assert not out[row, end:].any()
    assert torch.equal(last[1], call[5][1])
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        again = run(*call[:5], state=call[5], lengths=lengths)
        assert all(map(torch.equal, again, (out, last)))
    torch.set_num_threads(before)


@pytest.mark.parametrize(("run", "allowed"), [(kda_native_step, 1e-5), (kda_native_chunk, 4e-3)])
def test_packed_sequences_are_those_alone(level, run, allowed):
    offsets = [0, 0, 5, 6, 24, 24, 48]
    call = draw(2, 24, 3, 20, 12, dtype=BF16)[:5]
    state = torch.randn(len(offsets) - 1, 3, 20, 12)
    out, last = run(*call, state=state, cu_seqlens=torch.tensor(offsets))
    flat = [x.flatten(0, 1)[None] for x in call]
    for s, (a, b) in enumerate(pairwise(offsets)):
        want, after = exact([x[:, a:b] for x in flat] + [state[s : s + 1]])
        # out is rounded to bf16 once
        assert_close(out.flatten(0, 1)[None, a:b], want, allowed + 4e-3, f"segment {s}")
        assert_close(last[s : s + 1], after, allowed, f"state {s}")
    assert torch.equal(last[0], state[0])


@pytest.mark.parametrize("T", [1, 9])
@pytest.mark.parametrize("width", [12, 128])
def test_the_state_is_written_over_only_when_asked(T, width):
    call = draw(2, T, 4, 20, width)
    kept = call[5].clone()
    out, last = kda_native_step(*call[:5], state=call[5])
    assert torch.equal(call[5], kept)
    again, over = kda(*call[:5], state=call[5], overwrite=True, backend="kda.native_step")
    assert over.data_ptr() == call[5].data_ptr()
    assert torch.equal(over, last)
    assert torch.equal(again, out)


def test_strided_views_are_read_as_they_are():
    call = draw(2, 7, 3, 20, 12)
    want = kda_native_step(*call[:5], state=call[5])
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in call[:4]]
    beta = torch.cat([call[4], call[4]], -1)[..., :3]
    wide = torch.full((2, 3, 20, 30), float("nan"))
    wide[..., :12] = call[5]
    got = kda_native_step(*turned, beta, state=wide[..., :12])
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("sizes", [(0, 3, 2, 4, 5), (2, 0, 2, 4, 5), (2, 3, 0, 4, 5)], ids=str)
def test_nothing_is_no_work(level, sizes):
    call = draw(*sizes)
    out, last = kda_native_step(*call[:5], state=call[5])
    assert out.shape == call[2].shape
    assert torch.equal(last, call[5])


def test_widths_of_zero(level):
    """No key channel: nothing is remembered, nothing read. No value channel: nothing to say."""
    out, last = kda_native_step(*draw(2, 3, 2, 0, 5)[:5], scale=1.0)
    assert not out.any()
    assert last.shape == (2, 2, 0, 5)
    assert kda_native_step(*draw(2, 1, 2, 4, 0)[:5])[1].shape == (2, 2, 4, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.ones(1, 2, 3, 4).double()}, "q must be float32 or bfloat16"),
        ({"k": torch.ones(1, 2, 3, 4).bfloat16()}, "k must be float32"),
        ({"v": torch.ones(1, 2, 3)}, r"v must be float32 \[B, T, H, V\], got float32 \[1, 2, 3\]"),
        ({"g": torch.ones(1, 2, 3, 5)}, "g has K = 5 where q has 4"),
        ({"beta": torch.ones(1, 2, 4)}, "beta has H = 4 where q has 3"),
        ({"state": torch.ones(1, 3, 5, 4)}, "state has K = 5 where q has 4"),
        ({"out": torch.ones(1, 2, 3, 5).bfloat16()}, "out must be float32"),
        ({"last": torch.ones(2, 3, 4, 5)}, "q has S = 1 where last has 2"),
        ({"lengths": torch.tensor([3])}, r"lengths must lie in 0..T = 2, got 3"),
        ({"offsets": torch.tensor([0, 1])}, "offsets must start at 0"),
        ({"offsets": torch.tensor([0, 1, 2])}, "last has S . 1 = 2 where offsets has 3"),
        ({"q": torch.ones(1, 2, 4, 3).transpose(2, 3)}, "q must be contiguous along its last axis"),
        ({"unit_eps": -1.0}, "unit_eps must be at least 0"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, message):
    given = {
        "q": torch.ones(1, 2, 3, 4),
        "k": torch.ones(1, 2, 3, 4),
        "v": torch.ones(1, 2, 3, 5),
        "g": None,
        "beta": torch.ones(1, 2, 3),
        "state": None,
        "out": torch.ones(1, 2, 3, 5),
        "last": torch.ones(1, 3, 4, 5),
        "lengths": None,
        "offsets": None,
        "unit_eps": None,
    } | change
    with pytest.raises(ValueError, match=f"kda_step: {message}"):
        native.kda_step(**given, scale=1.0)
    with pytest.raises(ValueError, match="kda_chunk: q must be bfloat16"):
        native.kda_chunk(**given, scale=1.0)


def test_the_first_half_does_not_see_the_second():
    for run in (kda_native_step, kda_native_chunk):
        call = draw(2, 67, 3, 20, 34, dtype=BF16)
        out, _ = run(*call[:5])
        other = draw(2, 67, 3, 20, 34, dtype=BF16)
        for t in (1, 3, 4, 5, 31, 32, 33, 66):
            changed = [torch.cat((x[:, :t], y[:, t:]), 1) for x, y in zip(call, other, strict=True)]
            again, _ = run(*changed[:5])
            assert torch.equal(again[:, :t], out[:, :t]), t
            assert not torch.equal(again[:, t:], out[:, t:]), t


@pytest.mark.skipif(not native or "avx512_bf16" not in native.levels(), reason="no bf16 products")
@pytest.mark.parametrize("tokens", [1, MANY_TOKENS - 1, MANY_TOKENS])
def test_bf16_products_are_for_many_tokens(tokens):
    call = draw(1, tokens, 3, 20, 34, dtype=BF16)
    run = kda_native_step if tokens < MANY_TOKENS else kda_native_chunk
    assert torch.equal(kda(*call[:5])[0], run(*call[:5])[0])
    wide = [x.float() for x in call]
    assert torch.equal(kda(*wide[:5])[0], kda_native_step(*wide[:5])[0])
    with pytest.raises(BackendUnavailable, match="products are of bfloat16"):
        kda(*wide[:5], backend="kda.native_chunk")


def test_what_it_cannot_take_is_said():
    call = draw(1, 2, 3, 4, 5)
    for changed, message in (
        ([x.double() for x in call], "bfloat16 or all in float32, got float64"),
        ([call[0].bfloat16(), *call[1:]], "got bfloat16, float32, float32"),
        ([*call[:3], call[3].bfloat16(), *call[4:]], "g, beta and state in float32"),
        ([call[0].transpose(2, 3).contiguous().transpose(2, 3), *call[1:]], "last axis"),
        ([call[0].clone().requires_grad_(), *call[1:]], "no backward"),
    ):
        with pytest.raises(BackendUnavailable, match=message):
            kda(*changed[:5], state=changed[5], backend="kda.native_step")
        kda(*changed[:5], state=changed[5])
    with pytest.raises(ShapeError, match="state must be"):
        kda_native_step(*call[:5], state=torch.cat([call[5], call[5]]))


@pytest.mark.parametrize("backend", ["kda.native_step", "kda.recurrent", "kda.chunk"])
def test_every_way_brings_keys_to_unit_length_when_asked(backend):
    call = draw(1, 9, 3, 20, 12)
    raw = [torch.randn_like(x) for x in call[:2]]
    q, k = (normalize(x.double(), dim=-1) for x in raw)
    want, after = exact([q, k, *call[2:]])
    out, last = kda(*raw, *call[2:5], state=call[5], unit_eps=1e-12, backend=backend)
    assert_close(out, want, 1e-5)
    assert_close(last, after, 1e-5)

"""The native attention of many queries against its reference, on every instruction set."""

import os

import pytest
import torch

from closeness import SLACK, assert_close, error
from interlace.bench import machine
from interlace.errors import BackendUnavailable
from interlace.ops.attention import attention_absorbed, attention_reference, latent_attention
from interlace.ops.attention.native_form import attention_native_rebuilt
from interlace.ops.native import core

native = core()
pytestmark = pytest.mark.skipif(native is None, reason="the native core was not built here")


@pytest.fixture(params=native.levels() if native else [])
def level(request):
    before = native.level()
    native.use_level(request.param)
    yield request.param
    native.use_level(before)


def draw(batch, tokens, heads, nope, shared, rank, value, cached):
    q = torch.randn(batch, tokens, heads, nope + shared).bfloat16()
    latent = torch.randn(batch, cached, rank + shared).bfloat16()
    w_uk = (torch.randn(heads, nope, rank) * rank**-0.5).bfloat16()
    w_uv = (torch.randn(heads, value, rank) * rank**-0.5).bfloat16()
    return q, latent, w_uk, w_uv


def run(q, latent, w_uk, w_uv, lengths=None, scale=None):
    return attention_native_rebuilt(
        q, latent, w_uk, w_uv, lengths=lengths, scale=scale, return_lse=True
    )


def plain(q, latent, w_uk, w_uv):
    """The reference in bfloat16, keys and values included."""
    rank = w_uk.shape[2]
    k = torch.einsum("bmr,hnr->bmhn", latent[..., :rank], w_uk)
    shared = latent[:, :, None, rank:].expand(-1, -1, w_uk.shape[0], -1)
    v = torch.einsum("bmr,hvr->bmhv", latent[..., :rank], w_uv)
    return attention_reference(q, torch.cat([k, shared], -1), v, compute_dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1, 0, 1, 1, 1),
        (2, 3, 5, 7, 3, 33, 9, 131),
        (1, 16, 2, 1, 5, 31, 65, 17),
        (1, 63, 2, 24, 8, 64, 20, 255),
        (1, 64, 3, 16, 8, 32, 16, 256),
        (1, 65, 2, 31, 0, 32, 33, 257),
        (3, 131, 2, 34, 2, 96, 40, 515),
        (1, 203, 2, 128, 64, 512, 128, 203),
    ],
)
def test_it_is_the_absorbed_form(level, sizes):
    torch.manual_seed(sum(sizes))
    args = draw(*sizes)
    before = [t.clone() for t in args]
    out, lse = run(*args)
    want, want_lse = attention_absorbed(args[0].double(), *args[1:], return_lse=True)
    bound = 2 * error(plain(*args), want) + SLACK[torch.bfloat16]
    assert_close(out, want, bound, "output")
    assert_close(lse, want_lse, 2.0**-7, "log-sum-exp")
    assert out.dtype == lse.dtype == torch.float32
    assert all(map(torch.equal, before, args))


@pytest.mark.parametrize("past", [0, 1, 31, 255, 256, 300])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257])
def test_a_query_sees_all_up_to_itself_and_nothing_later(level, tokens, past):
    """Equal scores: the log-sum-exp counts the keys, and the output is the mean of their values."""
    cached = past + tokens
    _, latent, w_uk, w_uv = draw(1, tokens, 1, 2, 1, 3, 2, cached)
    w_uv = torch.tensor([[[1.0, 0, 0], [0, 1, 0]]]).bfloat16()
    latent[0, :, 0] = (torch.arange(cached) % 7 == 0).bfloat16()
    latent[0, :, 1] = (torch.arange(cached) % 50).bfloat16()
    out, lse = run(torch.zeros(1, tokens, 1, 3).bfloat16(), latent, w_uk, w_uv)
    counts = torch.arange(past + 1, cached + 1).double()
    assert_close(lse[0, :, 0], counts.log(), 1e-5, "log-sum-exp")
    means = latent[0, :, :2].double().cumsum(0)[past:] / counts[:, None]
    assert_close(out[0, :, 0], means, 1e-5, "output")


def test_a_row_is_its_own(level):
    """Lengths at the edges of blocks, poison behind them; the same bits as the row alone."""
    ends = [0, 1, 39, 40, 41, 255, 256, 257, 400]
    q, latent, w_uk, w_uv = draw(len(ends), 40, 2, 8, 4, 32, 6, 400)
    for row, end in enumerate(ends):
        latent[row, end:] = float("nan")
    out, lse = run(q, latent, w_uk, w_uv, torch.tensor(ends))
    assert out.isfinite().all()
    for row, end in enumerate(ends):
        some = slice(row, row + 1)
        alone, alone_lse = run(q[some], latent[some], w_uk, w_uv, torch.tensor([end]))
        assert torch.equal(out[some], alone)
        assert torch.equal(lse[some], alone_lse)
        # queries before position 0 see nothing
        blind = max(0, 40 - end)
        assert not out[row, :blind].any()
        assert lse[row, :blind].isneginf().all()
        assert out[row, blind:].any(-1).all()


def test_neither_threads_nor_what_comes_later_change_a_bit():
    """One head of 1,100 queries is shared out among the threads there are."""
    q, latent, w_uk, w_uv = draw(1, 1100, 1, 16, 8, 64, 16, 1500)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(run(q, latent, w_uk, w_uv))
    torch.set_num_threads(before)
    for out, lse in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(lse, results[0][1])
    changed = latent.clone()
    changed[:, -30:] = 5.0
    after, _ = run(q, changed, w_uk, w_uv)
    assert torch.equal(after[:, :-30], results[0][0][:, :-30])
    assert not torch.equal(after[:, -30:], results[0][0][:, -30:])
    # the last queries alone are the last of many
    few, _ = run(q[:, -37:], latent, w_uk, w_uv)
    assert torch.equal(few, results[0][0][:, -37:])


def test_more_queries_than_one_item_takes():
    tokens = 8200
    _, latent, w_uk, w_uv = draw(1, tokens, 1, 1, 0, 1, 1, tokens)
    _, lse = run(torch.zeros(1, tokens, 1, 1).bfloat16(), latent, w_uk, w_uv)
    assert_close(lse[0, :, 0], torch.arange(1, tokens + 1).double().log(), 1e-5)


@pytest.mark.skipif(
    "asan" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer holds back what is freed"
)
def test_memory_is_that_of_a_block():
    """Keys and values of all heads would be 21 MB, the scores of one head 16 MB."""
    args = draw(1, 256, 16, 16, 8, 32, 16, 16384)
    run(*args)
    peak = machine.peak_over(machine.resident_bytes(), lambda: run(*args), every=0.001)
    assert peak < 8e6


@pytest.mark.parametrize("largest", [80.0, 1000.0])
def test_large_scores(level, largest):
    q, latent, w_uk, w_uv = draw(1, 70, 3, 16, 8, 32, 16, 400)
    # the later blocks hold the larger scores
    latent *= torch.linspace(0.1, 1, 400)[:, None]
    k = torch.einsum("bmr,hnr->bmhn", latent[..., :32].double(), w_uk.double())
    scores = torch.einsum("bthn,bmhn->bthm", q[..., :16].double(), k)
    q = (q.double() * (largest / scores.abs().max() * 24**0.5)).bfloat16()
    out, _ = run(q, latent, w_uk, w_uv)
    want = attention_absorbed(q.double(), latent, w_uk, w_uv)
    if largest == 80:
        # rounding a key moves a score of 80 by as much as 80 * 2^-9, and a weight by e to that
        assert_close(out, want, 80 * 2.0**-9)
    assert out.isfinite().all()
    assert out.abs().max() <= 1.01 * want.abs().max()


@pytest.mark.parametrize("scale", [0.0, -0.3, 2.0])
def test_any_scale(level, scale):
    args = draw(1, 40, 2, 6, 2, 20, 5, 90)
    out, lse = run(*args, scale=scale)
    want, want_lse = attention_absorbed(args[0].double(), *args[1:], scale=scale, return_lse=True)
    assert_close(out, want, 0.02)
    assert_close(lse, want_lse, 0.02)


def test_not_a_number_is_not_hidden(level):
    q, latent, w_uk, w_uv = draw(1, 20, 2, 6, 2, 20, 5, 90)
    q[0, 7, 1] = float("nan")
    out, _ = run(q, latent, w_uk, w_uv)
    expected = torch.zeros(20, 2, dtype=torch.bool)
    expected[7, 1] = True
    assert torch.equal(out.isnan()[0], expected[..., None].expand(-1, -1, 5))
    latent[0, 80] = float("nan")
    out, _ = run(q, latent, w_uk, w_uv)
    assert out[0, 10:].isnan().all()


def test_strided_views_are_read_as_they_are():
    q, latent, w_uk, w_uv = draw(2, 21, 3, 8, 4, 32, 6, 140)
    wide = torch.full((2, 200, 40), float("nan"), dtype=torch.bfloat16)
    wide[:, :140, :36] = latent
    both = torch.cat([w_uk, w_uv], 1)
    heads_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    out, _ = run(heads_first, wide[:, :140, :36], both[:, :8], both[:, 8:])
    assert torch.equal(out, run(q, latent, w_uk, w_uv)[0])
    with pytest.raises(ValueError, match="q must be contiguous along its last axis"):
        run(q.transpose(2, 3).contiguous().transpose(2, 3), latent, w_uk, w_uv)


@pytest.mark.parametrize("axis", range(8))
def test_no_size_needs_to_be_there(level, axis):
    sizes = [2, 5, 3, 4, 2, 6, 7, 9]
    sizes[axis] = 0
    if axis == 5:
        shapes = (2, 5, 3, 6), (2, 9, 2), (3, 4, 0), (3, 7, 0)
        with pytest.raises(ValueError, match="R must be at least 1"):
            run(*(torch.ones(shape).bfloat16() for shape in shapes))
        return
    out, lse = run(*draw(*sizes))
    assert out.shape == (sizes[0], sizes[1], sizes[2], sizes[6])
    if not sizes[7]:
        assert not out.any()
        assert lse.isneginf().all()
    else:
        assert out.isfinite().all()
        assert lse.isfinite().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latent": torch.ones(1, 9, 6)}, "latent must be bfloat16"),
        ({"w_uv": torch.ones(2, 3, 5).bfloat16()}, "w_uv has R = 5 where w_uk has 4"),
        ({"q": torch.ones(1, 2, 2, 4).bfloat16()}, "same width of the shared key"),
        ({"lengths": torch.tensor([10])}, r"lengths must lie in 0..M = 9, got 10"),
        ({"lengths": torch.tensor([-1])}, r"lengths must lie in 0..M = 9, got -1"),
        ({"lse": torch.ones(1, 3, 2)}, "lse has T = 3 where q has 2"),
        ({"out": torch.ones(1, 2, 3, 2).transpose(2, 3)}, "out must be contiguous"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, message):
    given = {
        "q": torch.ones(1, 2, 2, 5).bfloat16(),
        "latent": torch.ones(1, 9, 6).bfloat16(),
        "w_uk": torch.ones(2, 3, 4).bfloat16(),
        "w_uv": torch.ones(2, 3, 4).bfloat16(),
        "out": torch.ones(1, 2, 2, 3),
        "lse": None,
        "lengths": None,
    } | change
    with pytest.raises(ValueError, match=message):
        native.mla_prefill(**given, scale=1.0)


def test_it_takes_long_calls_and_refuses_what_it_cannot():
    q, latent, w_uk, w_uv = draw(1, 130, 2, 4, 2, 8, 4, 150)
    out = latent_attention(q, latent, w_uk, w_uv)
    assert torch.equal(out, attention_native_rebuilt(q, latent, w_uk, w_uv))
    name = "attention.native_rebuilt"
    with pytest.raises(BackendUnavailable, match="bfloat16"):
        latent_attention(q.float(), latent, w_uk, w_uv, backend=name)
    w_uk.requires_grad_()
    with pytest.raises(BackendUnavailable, match="no backward"):
        latent_attention(q, latent, w_uk, w_uv, backend=name)
    with torch.no_grad():
        assert torch.equal(latent_attention(q, latent, w_uk, w_uv, backend=name), out)

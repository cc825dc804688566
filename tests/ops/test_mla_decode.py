"""The native attention of few queries against its reference, on every instruction set."""

import pytest
import torch

from interlace.errors import BackendUnavailable
from interlace.ops.attention import attention_absorbed, latent_attention
from interlace.ops.attention.native_form import attention_native
from interlace.ops.native import core

native = core()
pytestmark = pytest.mark.skipif(native is None, reason="the native core was not built here")


@pytest.fixture(params=native.levels() if native else [])
def level(request):
    before = native.level()
    native.use_level(request.param)
    yield request.param
    native.use_level(before)


def draw(batch, tokens, heads, nope, shared, rank, value, cached, factor=1.0):
    q = (torch.randn(batch, tokens, heads, nope + shared) * factor).bfloat16()
    latent = torch.randn(batch, cached, rank + shared).bfloat16()
    w_uk = (torch.randn(heads, nope, rank) * rank**-0.5).bfloat16()
    w_uv = (torch.randn(heads, value, rank) * rank**-0.5).bfloat16()
    return q, latent, w_uk, w_uv


def run(q, latent, w_uk, w_uv, lengths=None):
    return attention_native(q, latent, w_uk, w_uv, lengths=lengths, return_lse=True)


@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1, 0, 1, 1, 1),
        (2, 3, 5, 7, 3, 33, 9, 131),
        (1, 2, 16, 24, 8, 64, 20, 127),
        (1, 1, 3, 16, 8, 32, 16, 128),
        (1, 1, 3, 16, 8, 32, 16, 129),
        (1, 1, 4, 16, 8, 96, 16, 1025),
        (3, 11, 13, 6, 2, 40, 10, 300),  # 143 queries a row: two passes over the tokens
    ],
)
def test_it_is_the_absorbed_form(level, sizes):
    torch.manual_seed(sum(sizes))
    q, latent, w_uk, w_uv = draw(*sizes)
    before = [t.clone() for t in (q, latent, w_uk, w_uv)]
    out, lse = run(q, latent, w_uk, w_uv)
    want, want_lse = attention_absorbed(q.double(), latent, w_uk, w_uv, return_lse=True)
    assert (out - want).abs().max() <= 2.0**-7 * want.abs().max()
    seen = want_lse.isfinite()
    assert torch.equal(lse.isfinite(), seen)
    assert (lse - want_lse)[seen].abs().max() <= 2.0**-7
    assert all(map(torch.equal, before, (q, latent, w_uk, w_uv)))


def test_a_row_is_its_own(level):
    """Lengths at the edges of tiles, poison behind them; the same bits as the row alone."""
    torch.manual_seed(3)
    ends = [0, 1, 2, 127, 128, 129, 255, 700]
    q, latent, w_uk, w_uv = draw(len(ends), 2, 5, 8, 4, 32, 6, 700)
    for row, end in enumerate(ends):
        latent[row, end:] = float("nan")
    out, lse = run(q, latent, w_uk, w_uv, torch.tensor(ends))
    assert out.isfinite().all()
    for row, end in enumerate(ends):
        some = slice(row, row + 1)
        alone, alone_lse = run(q[some], latent[some], w_uk, w_uv, torch.tensor([end]))
        assert torch.equal(out[some], alone)
        assert torch.equal(lse[some], alone_lse)
    # a query before position 0 sees nothing
    assert not out[0].any()
    assert lse[0].isneginf().all()
    assert not out[1, 0].any()
    assert out[1, 1].any()


def test_scores_up_to_eighty(level):
    torch.manual_seed(4)
    q, latent, w_uk, w_uv = draw(1, 2, 4, 16, 8, 32, 16, 400)
    folded = torch.einsum("bthn,hnr->bthr", q[..., :16].float(), w_uk.float())
    scores = torch.einsum("bthr,bmr->bthm", folded, latent[..., :32].float())
    q = (q.float() * (80 / scores.abs().max() * 24**0.5)).bfloat16()
    out, _ = run(q, latent, w_uk, w_uv)
    want = attention_absorbed(q.double(), latent, w_uk, w_uv)
    # a score of 80 is rounded by as much as 80 * 2^-9, and the weights by e to that
    assert (out - want).abs().max() <= 80 * 2.0**-9 * want.abs().max()


def test_threads_change_no_bit():
    torch.manual_seed(5)
    args = draw(2, 1, 6, 16, 8, 64, 16, 2500)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(run(*args)[0])
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_strided_views_are_read_as_they_are():
    torch.manual_seed(6)
    q, latent, w_uk, w_uv = draw(2, 2, 3, 8, 4, 32, 6, 140)
    wide = torch.full((2, 200, 40), float("nan"), dtype=torch.bfloat16)
    wide[:, :140, :36] = latent
    both = torch.cat([w_uk, w_uv], 1)
    heads_first = q.transpose(1, 2).contiguous().transpose(1, 2)
    out, _ = run(heads_first, wide[:, :140, :36], both[:, :8], both[:, 8:])
    assert torch.equal(out, run(q, latent, w_uk, w_uv)[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latent": torch.ones(2, 9, 4)}, "latent must be bfloat16"),
        ({"w_uk": torch.ones(2, 3, 5).bfloat16()}, "w_uv has R = 4 where w_uk has 5"),
        ({"q": torch.ones(1, 2, 2, 4).bfloat16()}, "same width of the shared key"),
        ({"lengths": torch.tensor([10])}, r"lengths must lie in 0..M = 9, got 10"),
        ({"lengths": torch.tensor([-1])}, r"lengths must lie in 0..M = 9, got -1"),
        ({"out": torch.ones(1, 2, 2, 3).bfloat16()}, "out must be float32"),
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
        native.mla_decode(**given, scale=1.0)


def test_it_refuses_what_it_cannot_take():
    q, latent, w_uk, w_uv = draw(1, 1, 2, 4, 2, 8, 4, 9)
    with pytest.raises(BackendUnavailable, match="bfloat16"):
        latent_attention(q.float(), latent, w_uk, w_uv, backend="attention.native")
    w_uk.requires_grad_()
    with pytest.raises(BackendUnavailable, match="no backward"):
        latent_attention(q, latent, w_uk, w_uv, backend="attention.native")

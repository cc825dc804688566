"""Attention against the latent: absorbed = rebuilt = expanded, ragged rows, NaN, memory."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.closeness import assert_close, assert_no_worse
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from interlace.errors import BackendUnavailable, ShapeError
from interlace.ops.attention import (
    absorbed,
    attention_absorbed,
    attention_expanded,
    attention_rebuilt,
    attention_reference,
    choose,
    latent_attention,
    rebuilt,
)

WAYS = [attention_absorbed, attention_rebuilt]


def make(batch, tokens, memory, dtype=torch.float64, sizes=(3, 5, 2, 7, 11), size=1.0):
    heads, nope, shared, value, rank = sizes
    q = torch.randn(batch, tokens, heads, nope + shared) * size
    latent = torch.randn(batch, memory, rank + shared)
    w_uk, w_uv = torch.randn(heads, nope, rank) / rank**0.5, torch.randn(heads, value, rank) / rank
    return [x.to(dtype) for x in (q, latent, w_uk, w_uv)]


def expand(q, latent, w_uk, w_uv):
    rank = w_uk.shape[-1]
    k = torch.einsum("bmr,hnr->bmhn", latent[..., :rank], w_uk)
    shared = latent[..., None, rank:].expand(-1, -1, w_uk.shape[0], -1)
    return q, torch.cat([k, shared], -1), torch.einsum("bmr,hvr->bmhv", latent[..., :rank], w_uv)


def exact(*inputs):
    return attention_reference(*expand(*(x.double() for x in inputs)), compute_dtype=torch.float64)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(absorbed, "LATENT_BLOCK", 32)
    monkeypatch.setattr(rebuilt, "LATENT_BLOCK", 32)
    monkeypatch.setattr(rebuilt, "QUERY_BLOCK", 8)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("tokens", "memory"), [(1, 1), (1, 33), (7, 31), (8, 32), (9, 70), (67, 67)]
)
def test_equals_the_reference(way, tokens, memory, dtype):
    inputs = make(2, tokens, memory, dtype)
    got, wanted = way(*inputs), exact(*inputs)
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    if dtype == torch.float64:
        assert_close(got, wanted, 1e-10)
        return
    q, k, v = (x.transpose(1, 2) for x in expand(*inputs))
    mask = torch.ones(tokens, memory, dtype=torch.bool).tril(memory - tokens)
    plain = ((q @ k.mT) * q.shape[-1] ** -0.5).masked_fill(~mask, float("-inf")).softmax(-1) @ v
    assert_no_worse(got.to(dtype), plain=plain.transpose(1, 2), exact=wanted)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_sizes_and_any_lengths(data):
    number = st.integers(1, 5)
    batch, tokens, past = data.draw(number), data.draw(number), data.draw(st.integers(0, 50))
    sizes = [data.draw(number) for _ in range(5)]
    sizes[2] -= 1  # the shared key may be empty
    inputs = make(batch, tokens, tokens + past, sizes=sizes)
    row = st.integers(tokens, tokens + past)
    ends = data.draw(st.lists(row, min_size=batch, max_size=batch))
    for way in WAYS:
        got = way(*inputs, lengths=torch.tensor(ends))
        for b, end in enumerate(ends):
            alone = [inputs[0][b : b + 1], inputs[1][b : b + 1, :end], *inputs[2:]]
            assert_close(got[b : b + 1], exact(*alone), 1e-10)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("way", WAYS)
def test_any_split_gives_the_same(way):
    q, latent, *weights = make(2, 71, 71)
    whole = attention_expanded(*expand(q, latent, *weights))
    for cut in (1, 31, 32, 33, 70):
        parts = [
            way(q[:, :cut], latent, *weights, lengths=torch.tensor([cut, cut])),
            way(q[:, cut:], latent, *weights),
        ]
        assert_close(torch.cat(parts, 1), whole, 1e-10)


@pytest.mark.parametrize("shared", [0, 64])
@pytest.mark.parametrize("way", WAYS)
def test_b27_the_shared_key_may_be_empty(way, shared):
    inputs = make(1, 2, 9, sizes=(3, 8, shared, 5, 16))
    assert inputs[1].shape[-1] == 16 + shared
    assert_close(way(*inputs), exact(*inputs), 1e-10)
    assert_close(way(*inputs, scale=(8 + shared) ** -0.5), way(*inputs), 0.0)


@pytest.mark.parametrize("way", WAYS)
def test_b29_all_sizes_differ(way):
    inputs = make(1, 4, 17, sizes=(3, 5, 2, 7, 11))
    assert way(*inputs).shape == (1, 4, 3, 7)
    assert_close(way(*inputs), exact(*inputs), 1e-10)
    q, latent, w_uk, w_uv = inputs
    with pytest.raises(ShapeError, match=r"latent must be \[1, 17, 13\]"):
        way(q, latent[..., :12], w_uk, w_uv)


@pytest.mark.parametrize(("nope", "shared", "value"), [(128, 64, 128), (96, 32, 128), (40, 24, 96)])
def test_b30_absorbed_equals_expanded_for_any_value_width(nope, shared, value):
    inputs = make(2, 3, 13, torch.float32, sizes=(2, nope, shared, value, 32))
    q, k, v = expand(*inputs)
    wanted = attention_expanded(q, k, v)
    assert wanted.shape[-1] == value
    for way in WAYS:
        assert_close(way(*inputs), wanted, 1e-5)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("empty", ["batch", "tokens", "heads", "value", "memory"])
def test_an_axis_may_be_empty(way, empty):
    batch, tokens, memory = (0 if empty == x else 4 for x in ("batch", "tokens", "memory"))
    heads, value = (0 if empty == x else 3 for x in ("heads", "value"))
    inputs = make(batch, tokens, memory, sizes=(heads, 5, 2, value, 11))
    o, lse = way(*inputs, return_lse=True)
    assert o.shape == (batch, tokens, heads, value)
    assert lse.shape == (batch, tokens, heads)
    if empty == "memory":
        assert not o.any()
        assert lse.isneginf().all()


@pytest.mark.parametrize("way", WAYS)
def test_b34_rows_of_unequal_length_and_empty_rows(way):
    q, latent, *weights = make(3, 1, 70)
    ends = [0, 5, 70]
    o, lse = way(q, latent, *weights, lengths=torch.tensor(ends), return_lse=True)
    assert torch.equal(o[0], torch.zeros_like(o[0]))
    assert torch.equal(lse[0], torch.full_like(lse[0], float("-inf")))
    for b in (1, 2):
        alone = way(q[b : b + 1], latent[b : b + 1, : ends[b]], *weights, return_lse=True)
        assert_close(o[b : b + 1], alone[0], 1e-12)
        assert_close(lse[b : b + 1], alone[1], 1e-12)
    scores = torch.einsum("bthn,bmhn->bthm", *expand(q, latent, *weights)[:2]) * 7**-0.5
    assert_close(lse[2], scores[2].logsumexp(-1), 1e-12)
    # more queries than latents: the first queries stand before the sequence and see nothing
    o, lse = way(
        q.expand(-1, 4, -1, -1), latent, *weights, lengths=torch.tensor([2] * 3), return_lse=True
    )
    assert torch.equal(o[:, :2], torch.zeros_like(o[:, :2]))
    assert bool((lse[:, :2] == float("-inf")).all())
    assert bool(torch.isfinite(lse[:, 2:]).all() and (o[:, 2:] != 0).all())
    # the first of these see nothing in the first block, and nothing in the second: two empty
    # parts are one empty part
    late, seen = torch.randn(3, 45, 3, 7, dtype=torch.float64), torch.tensor([40, 33, 45])
    o, lse = way(late, latent, *weights, lengths=seen, return_lse=True)
    for b, end in enumerate(seen.tolist()):
        blind = 45 - end
        assert torch.equal(o[b, :blind], torch.zeros_like(o[b, :blind]))
        assert bool((lse[b, :blind] == float("-inf")).all())
        alone = [late[b : b + 1, blind:], latent[b : b + 1, :end], *weights]
        assert_close(o[b : b + 1, blind:], exact(*alone), 1e-10)


@pytest.mark.parametrize("ends", [[3, 10], [6, 6]])
@pytest.mark.parametrize("way", WAYS)
def test_b35_nan_behind_the_written_part_reaches_nothing(way, ends):
    q, latent, *weights = make(2, 2, 12, torch.float32)
    zeros, nans = latent.clone(), latent.clone()
    for b, end in enumerate(ends):
        zeros[b, end:], nans[b, end:] = 0.0, float("nan")
    lengths = torch.tensor(ends)
    got = way(q, nans, *weights, lengths=lengths)
    assert bool(torch.isfinite(got).all())
    assert torch.equal(got, way(q, zeros, *weights, lengths=lengths))


def test_scores_of_80_in_bf16_lose_no_bits():
    q, latent, *weights = make(1, 1, 300, torch.bfloat16)
    top = torch.einsum("bthn,bmhn->bthm", *expand(*(x.double() for x in (q, latent, *weights)))[:2])
    q = (q * (80 * 7**0.5 / top.abs().max())).bfloat16()
    assert_close(attention_absorbed(q, latent, *weights), exact(q, latent, *weights), 1e-4)


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation made, views of the inputs apart."""

    def __init__(self, *inputs):
        super().__init__()
        self.known = {x.untyped_storage().data_ptr() for x in inputs}
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.known:
                self.size = max(self.size, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("way", WAYS)
def test_memory_does_not_grow_with_depth(way, small_blocks):
    found = []
    for memory in (200, 2000):
        inputs = make(1, 2, memory, torch.bfloat16)
        with Largest(*inputs) as seen:
            way(*inputs)
            way(*inputs, lengths=torch.tensor([memory - 1]))
        found.append(seen.size)
    assert found[0] == found[1]
    assert found[1] < 3 * 2000 * 2  # an [H, M] matrix in bf16 would be as large


@pytest.mark.parametrize("way", WAYS)
def test_b22_b23_strided_inputs_equal_contiguous_ones_and_stay(way):
    inputs = make(2, 3, 20, torch.bfloat16)
    lengths = torch.tensor([20, 11])
    turned = [x.transpose(1, -1).contiguous().transpose(1, -1) for x in inputs]
    spread = [torch.stack([x, x + 9], -1).flatten(-2)[..., ::2] for x in inputs]
    for strided in (turned, spread):
        assert not any(x.is_contiguous() for x in strided)
        kept = [x.clone() for x in strided]
        for options in ({}, {"lengths": lengths}):
            first = way(*strided, **options)
            assert_close(first, way(*inputs, **options), 1e-6)
            assert torch.equal(first, way(*strided, **options))
        assert all(torch.equal(a, b) for a, b in zip(strided, kept, strict=True))
    assert lengths.tolist() == [20, 11]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_a_later_token_changes_no_earlier_bit(way, dtype):
    q, latent, *weights = make(1, 6, 20, dtype)
    before = way(q, latent, *weights)
    latent = latent.clone()
    latent[:, -2:] = 5.0
    after = way(q, latent, *weights)
    assert torch.equal(before[:, :-2], after[:, :-2])
    assert not torch.equal(before[:, -2:], after[:, -2:])


def test_latent_attention_takes_the_way_that_suits_or_that_is_named():
    few, many = choose.CROSSOVER - 1, choose.CROSSOVER
    for tokens, way in ((few, attention_absorbed), (many, attention_rebuilt)):
        inputs = make(1, tokens, tokens + 5, torch.float32)
        assert torch.equal(latent_attention(*inputs), way(*inputs))
    named = latent_attention(*inputs, backend="attention.absorbed")
    assert torch.equal(named, attention_absorbed(*inputs))
    assert not torch.equal(named, attention_rebuilt(*inputs))
    with pytest.raises(BackendUnavailable, match=r"attention.absorbed, attention.rebuilt, got"):
        latent_attention(*inputs, backend="rebuilt")

"""The latent cache: what is written is read, nothing else is, and bytes are those allocated."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.caches import LatentCache
from interlace.config.sizes import grow_capacity
from interlace.errors import CacheError

B, WIDTH = 3, 7


def cache(capacity=0, dtype=torch.float32):
    return LatentCache(B, WIDTH, dtype, "cpu", capacity=capacity)


def test_grows_by_the_rule_and_keeps_what_was_written():
    c, pieces = cache(), [torch.randn(B, n, WIDTH) for n in (1, 40, 24, 30, 1)]
    capacity = total = 0
    for piece in pieces:
        assert c.append(piece) is None
        total += piece.shape[1]
        capacity = grow_capacity(capacity, total)
        assert c.capacity == capacity
        assert c.lengths.tolist() == [total] * B
    assert torch.equal(c.view(), torch.cat(pieces, 1))
    assert c.nbytes == B * capacity * WIDTH * 4


def test_reserves_and_grows_past_the_reservation():
    c = cache(capacity=5)
    where = c._buffer.data_ptr()
    c.append(torch.randn(B, 5, WIDTH))
    assert (c.capacity, c.nbytes, c._buffer.data_ptr()) == (5, B * 5 * WIDTH * 4, where)
    first = c.view().clone()
    c.append(torch.ones(B, 1, WIDTH))
    assert c.capacity == grow_capacity(5, 6)
    assert torch.equal(c.view(), torch.cat([first, torch.ones(B, 1, WIDTH)], 1))


def test_the_view_is_no_copy():
    c = cache(capacity=4)
    c.append(torch.randn(B, 2, WIDTH))
    assert c.view().data_ptr() == c._buffer.data_ptr()
    assert c.view().shape == (B, 2, WIDTH)


def test_rows_of_different_length():
    c = cache(capacity=16)
    first, second, third = (torch.randn(B, n, WIDTH) for n in (4, 3, 1))
    ends = c.append(first, lengths=torch.tensor([4, 1, 0]))
    assert ends.tolist() == [4, 4, 4]
    ends = c.append(second, lengths=torch.tensor([0, 3, 2]))
    assert ends.tolist() == [7, 4, 3]
    ends = c.append(third)
    assert ends.tolist() == [5, 5, 3]
    assert c.lengths.tolist() == [5, 5, 3]
    rows = [
        torch.cat([first[0, :4], third[0]]),
        torch.cat([first[1, :1], second[1], third[1]]),
        torch.cat([second[2, :2], third[2]]),
    ]
    for row, want in enumerate(rows):
        assert torch.equal(c.view()[row, : len(want)], want)
        assert not c.view()[row, len(want) :].any()


def test_b35_a_cache_reserved_with_nan_is_read_nowhere():
    c = cache(capacity=32)
    c._buffer.fill_(float("nan"))
    c.append(torch.full((B, 3, WIDTH), float("inf")).nan_to_num(), lengths=torch.tensor([0, 1, 3]))
    c.append(torch.randn(B, 2, WIDTH))
    c.append(torch.randn(B, 4, WIDTH), lengths=torch.tensor([4, 0, 1]))
    assert torch.isfinite(c.view()).all()
    c.append(torch.randn(B, 40, WIDTH))
    assert torch.isfinite(c.view()).all()
    assert torch.isfinite(c.clone().view()).all()


def test_the_clone_is_independent_and_as_large():
    c = cache(capacity=9)
    c.append(torch.randn(B, 2, WIDTH), lengths=torch.tensor([2, 1, 0]))
    d = c.clone()
    before = c.view().clone()
    assert (d.capacity, d.nbytes) == (9, c.nbytes)
    assert d.lengths.tolist() == [2, 1, 0]
    d.append(torch.randn(B, 1, WIDTH))
    d.view().zero_()
    assert torch.equal(c.view(), before)
    assert c.lengths.tolist() == [2, 1, 0]


def where(c):
    return c._buffer.data_ptr()


def filled(tokens=2, capacity=9):
    c = cache(capacity=capacity)
    c.append(torch.randn(B, tokens, WIDTH))
    return c, c.view().clone()


def test_a_clone_shares_memory_until_the_second_of_both_writes():
    c, before = filled()
    d, start = c.clone(), where(c)
    assert where(d) == start
    mine, other = torch.randn(B, 1, WIDTH), torch.randn(B, 3, WIDTH)
    c.append(mine)
    assert where(c) == start  # behind what the clone sees there is nobody
    assert torch.equal(d.view(), before)
    d.append(other)
    assert where(d) != start
    assert d.capacity == c.capacity
    assert torch.equal(c.view(), torch.cat([before, mine], 1))
    assert torch.equal(d.view(), torch.cat([before, other], 1))


def test_a_clone_that_was_dropped_costs_no_copy():
    c, _ = filled(tokens=5)
    start = where(c)
    d = c.clone()
    d.append(torch.randn(B, 1, WIDTH))
    del d
    c.trim([3] * B)
    c.append(torch.randn(B, 6, WIDTH))
    assert where(c) == start


def test_a_clone_sees_no_write_inside_its_view():
    c, before = filled(tokens=5)
    for change in (
        lambda x: x.trim([5, 1, 3]),
        lambda x: [x.trim([4] * B), x.append(torch.zeros(B, 1, WIDTH))],
        lambda x: x.append(torch.randn(B, 2, WIDTH), lengths=torch.tensor([2, 0, 1])),
    ):
        d = c.clone()
        change(d)
        d.append(torch.randn(B, 2, WIDTH))
        assert torch.equal(c.view(), before)
        assert c.lengths.tolist() == [5] * B


def test_trim_cuts_every_row_where_asked():
    c, before = filled(tokens=6)
    c.trim([4] * B)
    assert torch.equal(c.view(), before[:, :4])
    c.trim([1, 4, 0])
    assert c.lengths.tolist() == [1, 4, 0]
    for row, length in enumerate([1, 4, 0]):
        assert torch.equal(c.view()[row, :length], before[row, :length])
        assert not c.view()[row, length:].any()
    assert c.append(torch.ones(B, 1, WIDTH)).tolist() == [2, 5, 1]
    c.trim([0] * B)
    assert c.view().shape == (B, 0, WIDTH)
    assert c.append(torch.ones(B, 1, WIDTH)) is None


def test_rows_of_several_caches_become_one():
    c, first = filled(tokens=3)
    d, second = filled(tokens=5)
    d.trim([5, 2, 0])
    e = LatentCache.of_rows([(d, 1), (c, 2), (c, 2), (d, 0)], capacity=7)
    assert (e.batch, e.capacity, e.lengths.tolist()) == (4, 7, [2, 3, 3, 5])
    for row, want in enumerate([second[1, :2], first[2], first[2], second[0]]):
        assert torch.equal(e.view()[row, : len(want)], want)
        assert not e.view()[row, len(want) :].any()
    e.append(torch.zeros(4, 1, WIDTH))
    assert torch.equal(c.view(), first)


STEP = st.tuples(
    st.sampled_from(["append", "ragged", "clone", "trim", "drop", "reserve"]),
    st.integers(0, 3),
    st.integers(0, 5),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=14))
def test_forks_never_show_in_each_other(steps):
    forks = [(cache(), [[] for _ in range(B)])]
    for number, (what, which, size) in enumerate(steps):
        c, rows = forks[which % len(forks)]
        if what in ("append", "ragged"):
            new = torch.full((B, size, WIDTH), float(number + 1))
            counts = [size, size // 2, 0] if what == "ragged" else [size] * B
            c.append(new, lengths=torch.tensor(counts) if what == "ragged" else None)
            for row, count in zip(rows, counts, strict=True):
                row.extend([number + 1] * count)
        elif what == "clone":
            forks.append((c.clone(), [list(row) for row in rows]))
        elif what == "trim":
            c.trim([max(0, len(row) - size) for row in rows])
            for row in rows:
                del row[max(0, len(row) - size) :]
        elif what == "drop" and len(forks) > 1:
            forks.remove((c, rows))
        elif what == "reserve":
            c.reserve(10 * size)
        del c
        for fork, wanted in forks:
            assert fork.lengths.tolist() == [len(row) for row in wanted]
            for row, values in enumerate(wanted):
                assert fork.view()[row, : len(values), 0].tolist() == values
                assert not fork.view()[row, len(values) :].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_b51_the_dtype_asked_for_is_the_one_stored(dtype):
    c = cache(capacity=6, dtype=dtype)
    latent = torch.randn(B, 6, WIDTH)
    c.append(latent)
    assert c.view().dtype == dtype
    assert c.nbytes == B * 6 * WIDTH * dtype.itemsize
    assert torch.equal(c.view(), latent.to(dtype))


def test_b23_the_latent_given_is_unchanged_and_not_kept():
    c, latent = cache(), torch.randn(B, 3, WIDTH, requires_grad=True)
    before = latent.detach().clone()
    c.append(latent, lengths=torch.tensor([3, 2, 1]))
    assert torch.equal(latent.detach(), before)
    assert not c.view().requires_grad
    with torch.no_grad():
        latent.fill_(9)
    assert torch.equal(c.view()[0], before[0])


def test_inference_mode_and_ordinary_mode_can_take_turns():
    with torch.inference_mode():
        c = cache()
        c.append(torch.ones(B, 70, WIDTH))
    c.append(torch.ones(B, 1, WIDTH))
    weight = torch.ones(WIDTH, requires_grad=True)
    (c.view() * weight).sum().backward()
    assert weight.grad.tolist() == [71.0 * B] * WIDTH


def test_what_does_not_fit_is_refused_before_anything_changes():
    c = cache()
    for wrong in (torch.ones(2, 1, WIDTH), torch.ones(B, 1, 5), torch.ones(B, WIDTH)):
        with pytest.raises(CacheError, match=r"latents must be \[3, T, 7\]"):
            inspect.unwrap(LatentCache.append)(c, wrong)
    with pytest.raises(CacheError, match="batch >= 1"):
        LatentCache(0, WIDTH, torch.float32, "cpu")
    assert c.lengths.tolist() == [0] * B

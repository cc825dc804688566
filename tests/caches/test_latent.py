"""The latent cache: what is written is read, nothing else is, and bytes are those allocated."""

import inspect

import pytest
import torch

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

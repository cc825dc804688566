"""Greedy, nucleus and seeds, on distributions that can be counted by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interlace.errors import NonFiniteError
from interlace.generation.options import SamplingOptions
from interlace.generation.sampling import Sampler as RowSampler

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def Sampler(banned=None, prompt=(), **options):
    return RowSampler(SamplingOptions(**options), banned, prompt)


def draws(count=400, banned=None, **options):
    sampler = Sampler(banned, **options)
    return [sampler.pick(LOGITS) for _ in range(count)]


def test_greedy_takes_the_largest():
    assert set(draws(3)) == {0}
    assert set(draws(3, torch.tensor([True, False, False, False]))) == {1}


def test_frequencies_follow_the_probabilities():
    found = torch.bincount(torch.tensor(draws(2000, temperature=1.0, seed=3)), minlength=4) / 2000
    assert float((found - LOGITS.exp()).abs().max()) < 0.04


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(0.5, {0}), (0.51, {0, 1}), (0.75, {0, 1}), (0.76, {0, 1, 2}), (1.0, {0, 1, 2, 3})],
)
def test_nucleus_is_the_smallest_set_that_holds_the_share(top_p, kept):
    # weights 4, 2, 1, 1, up to rounding of the logits, which 1e-6 keeps off the boundary
    logits = torch.tensor([4.0, 2.0, 1.0, 0.9]).log()
    share = top_p * 8 / 7.9 - (1e-6 if top_p < 1 else 0)
    sampler = Sampler(temperature=1.0, top_p=min(share, 1.0), seed=1)
    assert {sampler.pick(logits) for _ in range(300)} == kept


def test_small_temperature_sharpens_and_never_overflows():
    assert set(draws(50, temperature=1e-300)) == {0}
    hot = Sampler(temperature=1e300, seed=1)
    assert {hot.pick(LOGITS * 100) for _ in range(200)} == {0, 1, 2, 3}


def test_seed_repeats_and_another_differs():
    assert draws(60, temperature=1.0, seed=5) == draws(60, temperature=1.0, seed=5)
    assert draws(60, temperature=1.0, seed=5) != draws(60, temperature=1.0, seed=6)


@given(values=st.lists(st.floats(-50, 50), min_size=2, max_size=9), top_p=st.floats(0.01, 1.0))
def test_banned_ids_are_never_drawn(values, top_p):
    banned = torch.zeros(len(values), dtype=torch.bool)
    banned[::2] = True
    pick = Sampler(banned, temperature=0.7, top_p=top_p).pick(torch.tensor(values))
    assert pick % 2 == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_told(bad):
    logits = LOGITS.clone()
    logits[2] = bad
    with pytest.raises(NonFiniteError, match="logits must be finite"):
        Sampler().pick(logits)
    banned = torch.tensor([False, False, True, False])
    assert Sampler(banned).pick(logits) == 0

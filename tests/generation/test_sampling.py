"""Greedy, nucleus and seeds, on distributions that can be counted by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interlace.errors import InputError, NonFiniteError
from interlace.generation.sampling import Sampler, check_sampling

LOGITS = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()


def draws(count=400, banned=None, **options):
    sampler = Sampler(**options)
    return [sampler.pick(LOGITS, banned) for _ in range(count)]


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
    pick = Sampler(temperature=0.7, top_p=top_p).pick(torch.tensor(values), banned)
    assert pick % 2 == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature must be 0"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\]"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"seed": -1}, "seed must lie"),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_meaningless_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Sampler(**options)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_told(bad):
    logits = LOGITS.clone()
    logits[2] = bad
    with pytest.raises(NonFiniteError, match="logits must be finite"):
        Sampler().pick(logits)
    banned = torch.tensor([False, False, True, False])
    assert Sampler().pick(logits, banned) == 0


@pytest.mark.parametrize("wrong", ["1", None, True, [1], 0.5 + 0j], ids=repr)
def test_options_of_another_type_are_refused(wrong):
    for options in ((wrong, 1.0, 0), (0.0, wrong, 0), (0.0, 1.0, wrong)):
        with pytest.raises(InputError, match="must"):
            check_sampling(*options)
    with pytest.raises(InputError, match="seed"):
        check_sampling(0.0, 1.0, 0.5)

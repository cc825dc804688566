"""Quantile balancing: even loads in a few steps, exactly and by counts that add up."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from closeness import assert_close
from interlace.errors import ShapeError
from interlace.ops.moe import bias_from_counts, choose, margin_counts, quantile_bias

# top 1 alone gives loads of 4, 3, 1 and 0
WORKED = torch.tensor(
    [
        [0.99, 0.36, 0.82, 0.23],
        [0.44, 0.98, 0.40, 0.01],
        [0.99, 0.91, 0.67, 0.31],
        [0.61, 0.49, 0.28, 0.48],
        [0.99, 0.66, 0.34, 0.89],
        [0.55, 0.75, 0.85, 0.24],
        [0.44, 0.80, 0.77, 0.43],
        [0.25, 0.99, 0.71, 0.48],
    ],
    dtype=torch.float64,
)


def loads(scores, bias, top_k):
    indices, _ = choose(scores, bias, top_k=top_k)
    return torch.bincount(indices.flatten(), minlength=scores.shape[1])


def skewed(tokens: int, experts: int, seed: int = 0, spread: float = 1.5):
    """Scores of a router that favours some experts."""
    generator = torch.Generator().manual_seed(seed)
    favour = spread * torch.randn(experts, generator=generator)
    return torch.sigmoid(favour + torch.randn(tokens, experts, generator=generator))


def test_worked_case_of_the_spec():
    bias = torch.zeros(4, dtype=torch.float64)
    assert loads(WORKED, bias, 1).tolist() == [4, 3, 1, 0]
    for new in (
        quantile_bias(WORKED, bias, 1),
        bias_from_counts(margin_counts(WORKED, bias, 1), bias, 1),
    ):
        assert loads(WORKED, new, 1).tolist() == [2, 2, 2, 2]
        assert abs(float(new.mean())) < 1e-12


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "by counts"])
def test_skewed_loads_even_out_in_ten_steps(exact):
    experts, top_k, tokens = 48, 3, 2000
    bias = torch.zeros(experts)
    shares = []
    for step in range(11):
        # the scores of a new batch each step, as in training
        scores = skewed(tokens, experts, seed=1) if step == 0 else resampled(step)
        load = loads(scores, bias, top_k).double()
        shares.append(float(load.max() / load.mean()))
        if exact:
            bias = quantile_bias(scores, bias, top_k)
        else:
            bias = bias_from_counts(margin_counts(scores, bias, top_k), bias, top_k)
    assert shares[0] > 4
    assert shares[-1] < 1.3


def resampled(step: int):
    """The same favours and other tokens."""
    favour = 1.5 * torch.randn(48, generator=torch.Generator().manual_seed(1))
    noise = torch.randn(2000, 48, generator=torch.Generator().manual_seed(100 + step))
    return torch.sigmoid(favour + noise)


@settings(max_examples=20, deadline=None)
@given(
    tokens=st.integers(1, 300),
    experts=st.integers(2, 20),
    top_k=st.integers(1, 19),
    bins=st.sampled_from([10, 1000]),
)
def test_counts_are_within_one_bin_of_a_neighbouring_margin(tokens, experts, top_k, bins):
    top_k = min(top_k, experts - 1)
    scores = skewed(tokens, experts, seed=tokens).double()
    bias = torch.linspace(-0.2, 0.3, experts, dtype=torch.float64)
    counts = margin_counts(scores, bias, top_k, bins)
    assert (counts.sum(-1) == tokens).all()
    new = bias_from_counts(counts, bias, top_k)
    cutoff = (scores + bias).topk(top_k + 1, dim=-1).values[:, -1:]
    # the order statistic that the share reaches, less the same shift
    place = -(-tokens * top_k // experts) - 1
    wanted = (cutoff - scores).sort(dim=0).values[place]
    width = (0.5 + 2) / bins
    assert ((new - new[0]) - (wanted - wanted[0])).abs().max() <= 2 * width + 1e-12
    assert abs(float(new.mean())) < 1e-12


def test_counts_of_parts_add_up():
    scores, bias = skewed(500, 12), 0.1 * torch.randn(12)
    whole = margin_counts(scores, bias, 3)
    parts = sum(margin_counts(part, bias, 3) for part in scores.split([123, 1, 376]))
    assert torch.equal(whole, parts)


def test_the_old_bias_enters_through_the_cutoffs_only():
    scores = skewed(400, 9).double()
    bias = 0.2 * torch.randn(9, dtype=torch.float64)
    # the same for all experts: no choice changes, so nothing does
    shifted = quantile_bias(scores, bias + 0.7, 2)
    assert_close(shifted, quantile_bias(scores, bias, 2), 1e-12)
    before = bias.clone()
    margin_counts(scores, bias, 2)
    assert torch.equal(bias, before)


def test_bias_keeps_its_dtype_and_needs_no_graph():
    scores = skewed(30, 5).requires_grad_()
    bias = torch.zeros(5)
    for new in (
        quantile_bias(scores, bias, 2),
        bias_from_counts(margin_counts(scores, bias, 2), bias, 2),
    ):
        assert new.dtype == torch.float32
        assert not new.requires_grad


@pytest.mark.parametrize("top_k", [0, 5, 6])
def test_nothing_to_balance_is_refused(top_k):
    with pytest.raises(ShapeError, match="nothing to balance"):
        quantile_bias(skewed(30, 5), torch.zeros(5), top_k)

"""Quantile balancing: a router bias under which every expert gets its share (spec section 7.5).

    cutoff   a_i   = the (k+1)-th largest of s_i + b          what an expert must beat in token i
    margin   r_ij  = a_i - s_ij                               the bias with which j would just tie
    new bias b_j   = the k/n-quantile of r_:j, then minus the mean over experts

An expert with bias b_j is chosen where r_ij < b_j; with the k/n-quantile that is k/n of the
tokens, the even share. The old bias enters through the cutoffs only. By histogram the same to one
bin's width: the counts of several micro-batches or processes add up. K3 report, equations 13, 14.
"""

import torch

from interlace.errors import ShapeError
from interlace.shapes import Float, Int, Tensor

__all__ = ["BINS", "bias_from_counts", "margin_counts", "quantile_bias"]

BINS = 1000
"""Bins of the histogram, as in the report."""


def _margins(scores: Tensor, bias: Tensor, top_k: int) -> Tensor:
    """The margins [T, E], in the dtype of the scores, which is float32 or wider."""
    experts = scores.shape[-1]
    if scores.ndim != 2 or bias.shape != (experts,) or not 1 <= top_k < experts:
        raise ShapeError(
            f"scores must be [T, E], bias [E] and top_k in 1..E-1, got {tuple(scores.shape)}, "
            f"{tuple(bias.shape)} and {top_k}; with every expert chosen there is nothing to balance"
        )
    biased = scores + bias.to(scores.dtype)
    cutoff = biased.topk(top_k + 1, dim=-1).values[:, -1:]
    return cutoff - scores


@torch.no_grad()
def quantile_bias(
    scores: Float[Tensor, "T E"], bias: Float[Tensor, "E"], top_k: int
) -> Float[Tensor, "E"]:
    """The bias for the next step from the scores of this one, exactly.

    Args:
        scores: of the router, without bias; all tokens of the step.
        bias: with which these tokens were routed.
        top_k: experts per token.

    Returns:
        Dtype of `bias`; its mean is zero.

    Raises:
        ShapeError: sizes that do not fit, or `top_k` not below the number of experts.
    """
    margins = _margins(scores, bias, top_k)
    tokens, experts = margins.shape
    ordered = margins.sort(dim=0).values
    # linear between the two neighbours; torch.quantile refuses inputs of a real step's size
    place = (tokens - 1) * top_k / experts
    low = int(place)
    high = min(low + 1, tokens - 1)
    new = torch.lerp(ordered[low], ordered[high], place - low)
    return (new - new.mean()).to(bias.dtype)


@torch.no_grad()
def margin_counts(
    scores: Float[Tensor, "T E"], bias: Float[Tensor, "E"], top_k: int, bins: int = BINS
) -> Int[Tensor, "E bins"]:
    """Histogram of each expert's margins; counts of parts of a step under one bias add up.

    Every margin lies between min(bias) - 1 and max(bias) + 1, since scores lie in 0..1; the bins
    divide that range evenly.

    Args:
        scores: of the router, in 0..1, without bias.
        bias: with which these tokens were routed; the same in every part.
        top_k: experts per token.
        bins: of the histogram.

    Raises:
        ShapeError: as `quantile_bias`.
    """
    margins = _margins(scores, bias, top_k)
    low, width = _range(bias, bins)
    index = ((margins - low) / width).long().clamp_(0, bins - 1)  # [T, E]
    experts = margins.shape[1]
    index += torch.arange(experts, device=index.device) * bins
    return torch.bincount(index.flatten(), minlength=experts * bins).view(experts, bins)


@torch.no_grad()
def bias_from_counts(
    counts: Int[Tensor, "E bins"], bias: Float[Tensor, "E"], top_k: int
) -> Float[Tensor, "E"]:
    """The bias for the next step from the summed counts, to one bin's width.

    Args:
        counts: from `margin_counts`, summed over all parts of the step.
        bias: with which they were made.
        top_k: experts per token.

    Returns:
        Dtype of `bias`; its mean is zero.
    """
    experts, bins = counts.shape
    low, width = _range(bias, bins)
    reached = counts.cumsum(-1)
    share = reached[:, -1:].double() * top_k / experts  # [E, 1], the even load
    bin_ = (reached < share.ceil()).sum(-1, keepdim=True).clamp_(max=bins - 1)
    held = counts.gather(-1, bin_)
    before = reached.gather(-1, bin_) - held
    inside = ((share - before) / held.clamp(min=1)).clamp_(0, 1)
    new = low + (bin_ + inside).squeeze(-1) * width
    return (new - new.mean()).to(bias.dtype)


def _range(bias: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Lower end and width of the bins, in float64: an edge must not depend on rounding."""
    low, high = torch.aminmax(bias.double())
    return low - 1, (high - low + 2) / bins

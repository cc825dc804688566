"""The sigmoid router whose bias decides who is chosen and nothing else (spec section 7.2)."""

import torch

from interlace.errors import ShapeError
from interlace.shapes import Float, Int, Tensor

__all__ = ["choose", "route", "router_scores"]

# in the denominator of the renormalised weights (spec section 7.2)
_TINY = 1e-20


def route(
    x: Float[Tensor, "T D"],
    weight: Float[Tensor, "E D"],
    bias: Float[Tensor, "E"],
    *,
    top_k: int,
    num_groups: int = 1,
    topk_group: int = 1,
    renormalize: bool = True,
    scaling: float = 1.0,
    biased_weights: bool = False,
) -> tuple[Int[Tensor, "T chosen"], Float[Tensor, "T chosen"]]:
    """Choose `top_k` experts for each token, and the weight of each.

    Logits, scores and weights are float32 whatever the inputs are (float64 for float64 inputs): a
    logit rounded to bf16 flips choices. Gradients reach `x` and `weight` through the weights; the
    choice has none.

    Args:
        x: rows, any float dtype.
        weight: of the router, any float dtype.
        bias: added to the scores for the choice only.
        top_k: experts per token.
        num_groups: experts are cut into this many equal groups, in order.
        topk_group: groups that may be chosen from: those with the largest sum of two biased scores.
        renormalize: make the weights of a token add up to 1 (before `scaling`; not for one).
        scaling: factor on all weights.
        biased_weights: weight by the biased scores, as Kimi Linear's own remote code does.

    Returns:
        Expert indices int64, best first, and their weights.

    Raises:
        ShapeError: sizes that do not fit, or groups that cannot supply `top_k` experts.
    """
    return choose(
        router_scores(x, weight),
        bias,
        top_k=top_k,
        num_groups=num_groups,
        topk_group=topk_group,
        renormalize=renormalize,
        scaling=scaling,
        biased_weights=biased_weights,
    )


def router_scores(x: Float[Tensor, "T D"], weight: Float[Tensor, "E D"]) -> Float[Tensor, "T E"]:
    """sigmoid(x W^T) in float32 (float64 for float64 inputs), whatever the inputs are."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.sigmoid(x.to(wide) @ weight.to(wide).t())


def choose(
    scores: Float[Tensor, "T E"],
    bias: Float[Tensor, "E"],
    *,
    top_k: int,
    num_groups: int = 1,
    topk_group: int = 1,
    renormalize: bool = True,
    scaling: float = 1.0,
    biased_weights: bool = False,
) -> tuple[Int[Tensor, "T chosen"], Float[Tensor, "T chosen"]]:
    """The second half of `route`, from the scores; arguments, result and errors are the same."""
    _check(scores.shape[1], top_k, num_groups, topk_group)
    biased = scores + bias.to(scores.dtype)
    choice = biased.detach()
    if num_groups > topk_group:
        grouped = choice.unflatten(-1, (num_groups, -1))  # [T, groups, E / groups]
        best = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1)
        kept = best.topk(topk_group, dim=-1).indices
        closed = torch.ones_like(best, dtype=torch.bool).scatter_(-1, kept, False)
        choice = grouped.masked_fill(closed[..., None], float("-inf")).flatten(-2)  # [T, E]
    indices = choice.topk(top_k, dim=-1).indices
    weights = (biased if biased_weights else scores).gather(-1, indices)
    if renormalize and top_k > 1:
        weights = weights / (weights.sum(-1, keepdim=True) + _TINY)
    return indices, weights * scaling


def _check(experts: int, top_k: int, num_groups: int, topk_group: int) -> None:
    if num_groups < 1 or experts % num_groups or not 1 <= topk_group <= num_groups:
        raise ShapeError(
            f"{experts} experts must split into num_groups equal groups, topk_group of them kept; "
            f"got num_groups={num_groups}, topk_group={topk_group}; choose a divisor, 1..num_groups"
        )
    open_experts = topk_group * (experts // num_groups)
    if not 1 <= top_k <= open_experts:
        raise ShapeError(
            f"top_k must lie in 1..{open_experts}, the experts of the kept groups; got {top_k}; "
            "lower it or keep more groups"
        )

"""Mixture of experts: who is chosen with which weight, the weighted sum, and even loads."""

from interlace.ops.moe.balance import BINS as BINS
from interlace.ops.moe.balance import bias_from_counts as bias_from_counts
from interlace.ops.moe.balance import margin_counts as margin_counts
from interlace.ops.moe.balance import quantile_bias as quantile_bias
from interlace.ops.moe.experts import dispatch as dispatch
from interlace.ops.moe.experts import moe_experts as moe_experts
from interlace.ops.moe.reference import moe_experts_reference as moe_experts_reference
from interlace.ops.moe.reference import route_reference as route_reference
from interlace.ops.moe.router import choose as choose
from interlace.ops.moe.router import route as route
from interlace.ops.moe.router import router_scores as router_scores

__all__ = [
    "BINS",
    "bias_from_counts",
    "choose",
    "dispatch",
    "margin_counts",
    "moe_experts",
    "moe_experts_reference",
    "quantile_bias",
    "route",
    "route_reference",
    "router_scores",
]

"""Mixture of experts: who is chosen with which weight, and the weighted sum of the chosen."""

from interlace.ops.moe.experts import moe_experts as moe_experts
from interlace.ops.moe.reference import moe_experts_reference as moe_experts_reference
from interlace.ops.moe.reference import route_reference as route_reference
from interlace.ops.moe.router import route as route

__all__ = ["moe_experts", "moe_experts_reference", "route", "route_reference"]

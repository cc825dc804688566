"""Planner: bytes and seconds by arithmetic, for any known architecture, with no model built.

Imports no torch.
"""

from interlace.planner.plan import Plan as Plan
from interlace.planner.plan import plan as plan

__all__ = ["Plan", "plan"]

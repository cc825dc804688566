"""Attention Residuals: what a sublayer reads is a mixture over depth, not the sum of everything."""

from interlace.ops.residual.reference import (
    attention_residual_reference as attention_residual_reference,
)
from interlace.ops.residual.two_phase import BankReads as BankReads
from interlace.ops.residual.two_phase import Candidate as Candidate
from interlace.ops.residual.two_phase import fold_live as fold_live
from interlace.ops.residual.two_phase import make_candidate as make_candidate
from interlace.ops.residual.two_phase import read_bank as read_bank

__all__ = [
    "BankReads",
    "Candidate",
    "attention_residual_reference",
    "fold_live",
    "make_candidate",
    "read_bank",
]

"""Root-mean-square norms: plain, gated per head, and to unit length."""

from interlace.ops.norm.choose import NORM_BACKENDS as NORM_BACKENDS
from interlace.ops.norm.choose import NormCall as NormCall
from interlace.ops.norm.choose import gated_rms_norm as gated_rms_norm
from interlace.ops.norm.choose import rms_norm as rms_norm
from interlace.ops.norm.fused import l2norm as l2norm
from interlace.ops.norm.reference import gated_rms_norm_reference as gated_rms_norm_reference
from interlace.ops.norm.reference import l2norm_reference as l2norm_reference
from interlace.ops.norm.reference import rms_norm_reference as rms_norm_reference

__all__ = [
    "NORM_BACKENDS",
    "NormCall",
    "gated_rms_norm",
    "gated_rms_norm_reference",
    "l2norm",
    "l2norm_reference",
    "rms_norm",
    "rms_norm_reference",
]

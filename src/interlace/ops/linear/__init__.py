"""Products with weights, x W^T, of weights as they are kept: dense, or codes in groups of 32.

linear_reference   the plain form, any dtype
linear             one product
project            several products of one input
gated              glu(x G^T, x U^T)
Packed             a matrix in codes; quantize, unpack: into int8 and int4, and back
"""

from interlace.ops.linear.choose import LINEAR_BACKENDS as LINEAR_BACKENDS
from interlace.ops.linear.choose import NATIVE_ROWS as NATIVE_ROWS
from interlace.ops.linear.choose import NATIVE_ROWS_PACKED as NATIVE_ROWS_PACKED
from interlace.ops.linear.choose import LinearCall as LinearCall
from interlace.ops.linear.choose import gated as gated
from interlace.ops.linear.choose import linear as linear
from interlace.ops.linear.choose import project as project
from interlace.ops.linear.codes import GROUP as GROUP
from interlace.ops.linear.codes import Packed as Packed
from interlace.ops.linear.codes import quantize as quantize
from interlace.ops.linear.codes import unpack as unpack
from interlace.ops.linear.reference import linear_reference as linear_reference
from interlace.ops.linear.reference import quantize_reference as quantize_reference

__all__ = [
    "GROUP",
    "LINEAR_BACKENDS",
    "NATIVE_ROWS",
    "NATIVE_ROWS_PACKED",
    "LinearCall",
    "Packed",
    "gated",
    "linear",
    "linear_reference",
    "project",
    "quantize",
    "quantize_reference",
    "unpack",
]

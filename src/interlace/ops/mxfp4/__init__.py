"""MXFP4 weights: four-bit codes with one power of two per group of 32, and products from them."""

from interlace.ops.mxfp4.codes import GROUP as GROUP
from interlace.ops.mxfp4.codes import LARGEST_SCALE as LARGEST_SCALE
from interlace.ops.mxfp4.codes import pack as pack
from interlace.ops.mxfp4.codes import quantize as quantize
from interlace.ops.mxfp4.codes import unpack as unpack
from interlace.ops.mxfp4.linear import mxfp4_linear as mxfp4_linear
from interlace.ops.mxfp4.reference import quantize_reference as quantize_reference
from interlace.ops.mxfp4.reference import unpack_reference as unpack_reference

__all__ = [
    "GROUP",
    "LARGEST_SCALE",
    "mxfp4_linear",
    "pack",
    "quantize",
    "quantize_reference",
    "unpack",
    "unpack_reference",
]

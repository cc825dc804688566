"""The gated activations between the products of a feed-forward network."""

from interlace.ops.mlp.glu import situ_glu as situ_glu
from interlace.ops.mlp.glu import swiglu as swiglu
from interlace.ops.mlp.reference import situ_glu_reference as situ_glu_reference
from interlace.ops.mlp.reference import swiglu_reference as swiglu_reference

__all__ = ["situ_glu", "situ_glu_reference", "swiglu", "swiglu_reference"]

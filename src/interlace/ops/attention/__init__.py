"""Causal softmax attention over keys and values, or over the latent that they come from.

attention_reference   the spec's order, any dtype
attention_expanded    keys and values given; trains
attention_absorbed    against the latent, W_UK and W_UV folded away; few queries
attention_rebuilt     against the latent, keys and values rebuilt block by block; many queries
native_form           the last two in the native core, bf16 on a CPU
latent_attention      picks one of these four
"""

from interlace.ops.attention.absorbed import attention_absorbed as attention_absorbed
from interlace.ops.attention.choose import LATENT_BACKENDS as LATENT_BACKENDS
from interlace.ops.attention.choose import LatentCall as LatentCall
from interlace.ops.attention.choose import latent_attention as latent_attention
from interlace.ops.attention.expanded import attention_expanded as attention_expanded
from interlace.ops.attention.rebuilt import attention_rebuilt as attention_rebuilt
from interlace.ops.attention.reference import attention_reference as attention_reference

__all__ = [
    "LATENT_BACKENDS",
    "LatentCall",
    "attention_absorbed",
    "attention_expanded",
    "attention_rebuilt",
    "attention_reference",
    "latent_attention",
]

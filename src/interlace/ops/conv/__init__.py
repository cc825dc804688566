"""The short causal convolution in front of q, k and v of a KDA layer."""

from interlace.ops.conv.reference import short_conv_reference as short_conv_reference
from interlace.ops.conv.shifted import short_conv as short_conv

__all__ = ["short_conv", "short_conv_reference"]

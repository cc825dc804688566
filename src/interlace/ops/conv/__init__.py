"""The short causal convolution in front of q, k and v of a KDA layer."""

from interlace.ops.conv.channels_last import short_conv as short_conv
from interlace.ops.conv.reference import short_conv_reference as short_conv_reference

__all__ = ["short_conv", "short_conv_reference"]

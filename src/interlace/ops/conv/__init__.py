"""The short causal convolution in front of q, k and v of a KDA layer."""

from interlace.ops.conv.channels_last import short_conv as short_conv
from interlace.ops.conv.choose import CONV_BACKENDS as CONV_BACKENDS
from interlace.ops.conv.choose import ConvCall as ConvCall
from interlace.ops.conv.choose import short_convs as short_convs
from interlace.ops.conv.reference import short_conv_reference as short_conv_reference

__all__ = ["CONV_BACKENDS", "ConvCall", "short_conv", "short_conv_reference", "short_convs"]

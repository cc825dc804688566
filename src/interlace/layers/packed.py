"""Matrices that stay in MXFP4: four bits a weight and a scale per 32, multiplied as they are.

    weight_packed [out, in / 2]   bytes, two codes each
    weight_scale  [out, in / 32]  bytes, 2^(byte - 127)

They are buffers, not parameters: nothing trains them, and a change of the model's dtype leaves
them alone. Spec section 7.4; the format itself is `interlace.ops.mxfp4`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from interlace.config import HybridConfig
from interlace.config.sizes import MXFP4, MXFP4_GROUP, expert_width, packs_experts
from interlace.errors import ConfigError
from interlace.ops.mxfp4 import mxfp4_linear, quantize, unpack
from interlace.shapes import Float, Tensor

__all__ = ["PackedLinear", "check_quantization"]

# what a group of published weights must say; "strategy" and the rest follow from these
_WEIGHTS: dict[str, Any] = {"num_bits": 4, "type": "float", "group_size": MXFP4_GROUP}


class PackedLinear(nn.Module):
    """`x W^T` with W in MXFP4; it starts as `nn.Linear` does, rounded.

    Args:
        in_features: a multiple of 32.
        out_features: rows of W.
    """

    weight_packed: Tensor
    weight_scale: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        packed = torch.empty(out_features, in_features // 2, dtype=torch.uint8)
        scale = torch.empty(out_features, in_features // MXFP4_GROUP, dtype=torch.uint8)
        self.register_buffer("weight_packed", packed)
        self.register_buffer("weight_scale", scale)
        if not packed.is_meta:
            bound = in_features**-0.5
            self.pack(torch.empty(out_features, in_features).uniform_(-bound, bound))

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        """Multiply every row, in the dtype of `x`."""
        return mxfp4_linear(x, self.weight_packed, self.weight_scale)

    def expanded(self, dtype: torch.dtype = torch.bfloat16) -> Float[Tensor, "F D"]:
        """W itself, exactly."""
        return unpack(self.weight_packed, self.weight_scale, dtype)

    def pack(self, weight: Float[Tensor, "F D"]) -> None:
        """Hold `weight` rounded to MXFP4. Mutates the module."""
        packed, scale = quantize(weight)
        self.weight_packed.copy_(packed)
        self.weight_scale.copy_(scale)


def check_quantization(config: HybridConfig) -> None:
    """Refuse weights that are quantised in another way than K3's experts.

    What a list of ignored modules says is not asked: the published one names too few.

    Raises:
        ConfigError: names the field, what must hold and what came.
    """
    if config.quantization is None:
        return
    form = config.quantization.get("format")
    if form != MXFP4:
        raise ConfigError(
            f"quantised weights must be packed experts ({MXFP4}), got {form!r}; build the model "
            "with config.replace(quantization=None), or read and size its config."
        )
    for name, group in _groups(config.quantization):
        weights = group.get("weights")
        for field, wanted in _WEIGHTS.items():
            came = weights.get(field) if isinstance(weights, Mapping) else None
            if came != wanted:
                raise ConfigError(
                    f"{field} of packed experts must be {wanted!r}, got {came!r} in {name} of "
                    "quantization_config; no other form of MXFP4 can be read."
                )
    if packs_experts(config):
        widths = expert_width(config), config.moe_intermediate_size or 0
        if any(width % MXFP4_GROUP for width in widths):
            raise ConfigError(
                f"rows of packed experts must be a multiple of {MXFP4_GROUP} long, got "
                f"{widths[0]} and {widths[1]} (routed_expert_hidden_size or hidden_size, and "
                "moe_intermediate_size); keep these experts unpacked."
            )


def _groups(quantization: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    groups = quantization.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise ConfigError(
            "quantization_config must describe its packed weights in config_groups, got "
            f"{groups!r}; fetch config.json again."
        )
    return [(name, g if isinstance(g, Mapping) else {}) for name, g in groups.items()]

"""Small K3 models with packed experts, and plain ones of the same make."""

import torch

import interlace
from interlace.config import HybridConfig
from interlace.config.presets import K3_QUANTIZATION
from interlace.layers.packed import PackedLinear
from tiny_models import K3, lively, small

# rows of whole groups: 64 into 96 and back
SIZES = {**K3, "num_experts": 3, "num_experts_per_token": 2}
SIZES |= {"routed_expert_hidden_size": 64, "moe_intermediate_size": 96}
EXPERT = "model.layers.1.block_sparse_moe.experts.0"


def plain_config(**changes) -> HybridConfig:
    return small(**{**SIZES, **changes})


def packed_config(**changes) -> HybridConfig:
    return plain_config(**{"quantization": K3_QUANTIZATION, **changes})


def plain_model(dtype: str = "float32", **changes) -> interlace.HybridLM:
    return lively(interlace.build(plain_config(**changes), seed=3, dtype=dtype))


def packed_model(dtype: str = "float32", **changes) -> interlace.HybridLM:
    """Experts of unit gain, packed; everything else as in `plain_model`."""
    lm = lively_but_packed(interlace.build(packed_config(**changes), seed=3, dtype=dtype))
    generator = torch.Generator().manual_seed(5)
    for module in lm.modules():
        if isinstance(module, PackedLinear):
            shape = module.out_features, module.in_features
            module.pack(torch.randn(shape, generator=generator) * module.in_features**-0.5)
    return lm


def lively_but_packed(lm: interlace.HybridLM) -> interlace.HybridLM:
    held = {name: b.clone() for name, b in lm.named_buffers() if b.dtype == torch.uint8}
    lively(lm)
    for name, value in held.items():
        lm.get_buffer(name).copy_(value)
    return lm

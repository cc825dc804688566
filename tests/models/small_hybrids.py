"""Small hybrids in which every size differs and every term shows."""

import pytest
import torch

import interlace
from interlace.config import HybridConfig


def small(**changes) -> HybridConfig:
    """Kimi Linear in small: every size different, biases that matter come from `lively`."""
    kda, full = HybridConfig.layout(4)
    fields = {
        "vocab_size": 61,
        "hidden_size": 40,
        "num_hidden_layers": 4,
        "kda_layers": kda,
        "full_attn_layers": full,
        "num_attention_heads": 3,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 6,
        "v_head_dim": 14,
        "kv_lora_rank": 22,
        "kda_num_heads": 2,
        "kda_head_dim": 12,
        "intermediate_size": 52,
        "max_position_embeddings": 4096,
    }
    return HybridConfig(**{**fields, **changes})


def lively(lm: torch.nn.Module, seed: int = 1) -> torch.nn.Module:
    """Weights large enough, norms and biases far enough from their start, for every term to
    show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if name.endswith(("layernorm.weight", "norm.weight")):
                parameter.copy_(1 + 0.3 * noise)
            elif parameter.ndim == 2:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            elif name.endswith("dt_bias"):
                parameter.copy_(-2 + noise)
    return lm


K3_STYLE = {
    "gate_lower_bound": -5.0,
    "use_full_rank_gate": True,
    "mla_use_output_gate": True,
    "q_lora_rank": 18,
    "model_type": "kimi_k3",
}
STYLES = pytest.mark.parametrize("style", [{}, K3_STYLE], ids=["kimi_linear", "k3_mixers"])


def model(style=None, dtype="float32", **changes):
    return lively(
        interlace.build(small(**(style or {}), **changes), seed=3, dtype=dtype)
    ).requires_grad_(False)


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 61, (batch, length), generator=torch.Generator().manual_seed(length))

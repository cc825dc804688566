"""Small models in which every tensor matters, and checkpoints of them to be damaged."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import interlace
from interlace.config import HybridConfig

Tensors = dict[str, torch.Tensor]

K3_STYLE = {
    "gate_lower_bound": -5.0,
    "use_full_rank_gate": True,
    "mla_use_output_gate": True,
    "q_lora_rank": 18,
}

# every part of K3; five layers in blocks of two, the last not full, the last two layers global
K3 = {
    **K3_STYLE,
    "num_hidden_layers": 5,
    "kda_layers": (1, 2, 3),
    "full_attn_layers": (4, 5),
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "num_experts": 7,
    "num_experts_per_token": 3,
    "routed_expert_hidden_size": 26,
    "latent_moe_use_norm": True,
    "routed_scaling_factor": 1.0,
    "attn_res_block_size": 2,
}


def small(**changes) -> HybridConfig:
    """Kimi Linear in small, every size different."""
    fields = {
        "vocab_size": 61,
        "hidden_size": 40,
        "num_hidden_layers": 3,
        "kda_layers": (1, 2),
        "full_attn_layers": (3,),
        "num_attention_heads": 3,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 6,
        "v_head_dim": 14,
        "kv_lora_rank": 22,
        "kda_num_heads": 2,
        "kda_head_dim": 12,
        "intermediate_size": 52,
        "num_experts": 5,
        "num_experts_per_token": 2,
        "moe_intermediate_size": 16,
        "num_shared_experts": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.446,
        "dtype": "float32",
    }
    return HybridConfig(**{**fields, **changes})


def lively(lm: torch.nn.Module, seed: int = 1) -> torch.nn.Module:
    """Every tensor far enough from its start for a mistake to show in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in [*lm.named_parameters(), *lm.named_buffers()]:
            noise = torch.randn(value.shape, generator=generator).to(value.dtype)
            if name.endswith("norm.weight"):
                value.copy_(1 + 0.3 * noise)
            elif name.endswith("dt_bias"):
                value.copy_(-2 + noise)
            elif name.endswith("A_log"):
                value.copy_(0.5 * noise)
            elif name.endswith("e_score_correction_bias"):
                value.copy_(0.3 * noise)
            elif "conv1d" in name:
                value.copy_(0.5 * noise)
            else:
                value.copy_(noise * value.shape[-1] ** -0.5)
    return lm.requires_grad_(False)


def model(dtype: str = "float32", **changes) -> interlace.HybridLM:
    return lively(interlace.build(small(**changes), seed=3, dtype=dtype))


def ids(length: int = 11, rows: int = 2, vocab: int = 61) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, vocab, (rows, length), generator=generator)


def edit(folder: Path, change: Callable[[Tensors], object]) -> Path:
    """Rewrite the one file of a checkpoint with changed tensors."""
    file = folder / "model.safetensors"
    tensors = {name: value.clone() for name, value in load_file(file).items()}
    changed = change(tensors)
    save_file(changed if isinstance(changed, dict) else tensors, file)
    return folder

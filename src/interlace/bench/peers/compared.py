"""Small models to compare with a peer, and the measures of the comparison.

The first two have the sizes of `kimi-linear-tiny` and `kimi-k3-tiny`; the others have all sizes
different, as far as llama.cpp's graph has room for that: one number of heads for both mixers, one
width for keys and values of a KDA head.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from interlace.config import HybridConfig, preset
from interlace.config.presets import K3_QUANTIZATION
from interlace.layers.kda import KimiDeltaAttention
from interlace.layers.mla import GatedMLA
from interlace.models import HybridLM
from interlace.ops.mxfp4 import quantize, unpack

__all__ = [
    "CASES",
    "TRIED",
    "Agreement",
    "agreement",
    "fill",
    "pack_experts",
    "per_token",
    "their_epsilons",
]

_LINEAR: dict[str, Any] = {"routed_scaling_factor": 2.446, "dtype": "float32"}
_K3: dict[str, Any] = {
    "mla_use_output_gate": True,
    "gate_lower_bound": -5.0,
    "use_full_rank_gate": True,
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
    "dtype": "float32",
    "model_type": "kimi_k3",
}


def _sizes(
    layers: int,
    full: tuple[int, ...],
    heads: int,
    widths: tuple[int, int, int, int, int, int],
    feed_forward: tuple[int, int, int, int, int, int],
    **rest: Any,
) -> HybridConfig:
    """A config; `widths` are D, N, P, V, R, K; `feed_forward` F, E, top-k, F of an expert, ..."""
    hidden, nope, rope, value, latent, head = widths
    dense, experts, chosen, one, shared, leading = feed_forward
    return HybridConfig(
        num_hidden_layers=layers,
        full_attn_layers=full,
        kda_layers=tuple(i for i in range(1, layers + 1) if i not in full),
        num_attention_heads=heads,
        kda_num_heads=heads,
        hidden_size=hidden,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=value,
        kv_lora_rank=latent,
        kda_head_dim=head,
        intermediate_size=dense,
        num_experts=experts,
        num_experts_per_token=chosen,
        moe_intermediate_size=one,
        num_shared_experts=shared,
        first_k_dense_replace=leading,
        **rest,
    )


CASES: dict[str, HybridConfig] = {
    "kimi-linear-tiny": preset("kimi-linear-tiny"),
    "kimi-k3-tiny": preset("kimi-k3-tiny"),
    "linear-a": _sizes(
        5,
        (2, 5),
        3,
        (72, 20, 12, 28, 44, 24),
        (100, 7, 3, 36, 2, 2),
        vocab_size=211,
        short_conv_kernel_size=3,
        **_LINEAR,
    ),
    "linear-b": _sizes(
        6,
        (3, 4, 6),
        5,
        (68, 14, 10, 22, 38, 18),
        (92, 11, 4, 26, 1, 0),
        vocab_size=173,
        **{**_LINEAR, "rms_norm_eps": 2e-5},
    ),
    "k3-a": _sizes(
        7,
        (4, 7),
        3,
        (76, 20, 12, 28, 44, 24),
        (104, 7, 3, 36, 2, 1),
        vocab_size=197,
        q_lora_rank=30,
        routed_expert_hidden_size=52,
        latent_moe_use_norm=True,
        attn_res_block_size=3,
        **_K3,
    ),
    "k3-b": _sizes(
        6,
        (1, 5, 6),
        5,
        (68, 14, 10, 22, 38, 18),
        (92, 11, 4, 26, 3, 2),
        vocab_size=229,
        attn_res_block_size=1,
        routed_scaling_factor=1.7,
        **_K3,
    ),
    "k3-c": _sizes(
        5,
        (3,),
        7,
        (84, 16, 6, 24, 42, 20),
        (108, 9, 2, 34, 1, 0),
        vocab_size=239,
        q_lora_rank=26,
        routed_expert_hidden_size=58,
        attn_res_block_size=8,
        moe_renormalize=False,
        **_K3,
    ),
}
"""What is compared; every one must pass."""

_A, _B = CASES["linear-a"], CASES["k3-a"]
_DENSE: dict[str, Any] = {
    "num_experts": None,
    "num_experts_per_token": None,
    "moe_intermediate_size": None,
    "num_shared_experts": 0,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
}
_ALL_KDA: dict[str, Any] = {"kda_layers": (1, 2, 3, 4, 5), "full_attn_layers": ()}
_ALL_MLA: dict[str, Any] = {"kda_layers": (), "full_attn_layers": (1, 2, 3, 4, 5)}
_GROUPS: dict[str, Any] = {"num_experts": 8, "num_expert_group": 2}

TRIED: dict[str, HybridConfig] = {
    "Kimi Linear with a query of low rank": _A.replace(q_lora_rank=30),
    "Kimi Linear with other heads in KDA": _A.replace(kda_num_heads=4),
    "Kimi Linear without experts": _A.replace(**_DENSE),
    "Kimi Linear without shared experts": _A.replace(num_shared_experts=0),
    "Kimi Linear with shares that are not normalised": _A.replace(moe_renormalize=False),
    "Kimi Linear with one of two groups of experts": _A.replace(**_GROUPS, topk_group=1),
    "Kimi Linear with both of two groups of experts": _A.replace(**_GROUPS, topk_group=2),
    "Kimi Linear with tied embeddings": _A.replace(tie_word_embeddings=True),
    "Kimi Linear of KDA alone": _A.replace(**_ALL_KDA),
    "Kimi Linear of Gated MLA alone": _A.replace(**_ALL_MLA),
    "Kimi Linear with a mixture in every second layer": _A.replace(moe_layer_freq=2),
    "Kimi Linear with P = 0": _A.replace(qk_rope_head_dim=0),
    "K3 with a low-rank gate of KDA": _B.replace(use_full_rank_gate=False),
    "K3 without Attention Residuals": _B.replace(attn_res_block_size=None),
    "K3 with SwiGLU": _B.replace(
        hidden_act="silu", activation_situ_beta=None, activation_situ_linear_beta=None
    ),
    "K3 with the softplus decay": _B.replace(gate_lower_bound=None),
    "K3 without a gate in MLA": _B.replace(mla_use_output_gate=False),
    "K3 with no soft cap of the linear branch": _B.replace(activation_situ_linear_beta=None),
    "K3 with Attention Residuals in full form": _B.replace(attn_res_block_size=0),
    "K3 without shared experts": _B.replace(num_shared_experts=0),
    "K3 with one of two groups of experts": _B.replace(**_GROUPS, topk_group=1),
    "K3 without experts": _B.replace(
        **_DENSE, routed_expert_hidden_size=None, latent_moe_use_norm=False
    ),
}
"""Ours runs them; whether llama.cpp does, and how it says no, is written down."""


@torch.no_grad()
def fill(lm: HybridLM, seed: int = 0) -> None:
    """Weights in which a mistake shows: N(0, 1/fan-in), so that no norm works near its epsilon."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in [*lm.named_parameters(), *lm.named_buffers()]:
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("norm.weight"):
            new = 1 + 0.3 * noise
        elif name.endswith("dt_bias"):
            new = -2 + noise
        elif name.endswith(("A_log", "conv1d.weight")):
            new = 0.5 * noise
        elif name.endswith("e_score_correction_bias"):
            new = 0.3 * noise
        elif name.endswith("embed_tokens.weight"):
            new = noise
        else:
            new = noise * value.shape[-1] ** -0.5
        value.copy_(new)


def their_epsilons(lm: HybridLM) -> None:
    """Give the three norms that llama.cpp computes with `rms_norm_eps` that epsilon.

    They are those of the query's low rank, of the latent, and of the unit length of KDA's queries
    and keys. No checkpoint keeps an epsilon of these, so the change lives as long as `lm`.
    """
    eps = lm.config.rms_norm_eps
    for module in lm.modules():
        if isinstance(module, KimiDeltaAttention):
            module.l2_norm_eps = eps
        elif isinstance(module, GatedMLA):
            module.kv_a_layernorm.eps = eps
            if lm.config.q_lora_rank is not None:
                module.q_a_layernorm.eps = eps


def pack_experts(folder: Path, into: Path, swapped: bool = False) -> dict[str, Tensor]:
    """Write the float32 checkpoint of `folder` again with its routed experts in MXFP4.

    Args:
        folder: with one file of tensors, in K3's layout.
        into: an empty folder.
        swapped: exchange the two codes of every byte, a mistake that no shape shows.

    Returns:
        The values that the packed experts stand for, by name (never those of the swapped ones).
    """
    expanded: dict[str, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    for name, value in load_file(folder / "model.safetensors").items():
        if ".block_sparse_moe.experts." not in name:
            tensors[name] = value
            continue
        packed, scale = quantize(value)
        expanded[name] = unpack(packed, scale, torch.float32)
        if swapped:
            packed = (packed << 4) | (packed >> 4)
        tensors[f"{name}_packed"], tensors[f"{name}_scale"] = packed, scale
    save_file(tensors, into / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["quantization_config"] = K3_QUANTIZATION
    (into / "config.json").write_text(json.dumps(config, indent=2))
    return expanded


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far the logits of two systems are apart."""

    difference: float
    """max |a - b| / max(1, max |b|)."""
    scale: float
    """max |b|."""
    argmax: int
    """Tokens with another largest logit although the two largest differ by more than the bound."""
    close: int
    """Tokens whose two largest logits differ by no more than that, which say nothing."""


def agreement(ours: Tensor, theirs: Tensor, bound: float) -> Agreement:
    """Compare logits `[tokens, vocab]`.

    Args:
        ours: of this library.
        theirs: of the peer.
        bound: of the difference, in its measure.
    """
    scale = theirs.abs().max().item()
    unit = max(1.0, scale)
    two = theirs.topk(2, dim=1).values
    clear = two[:, 0] - two[:, 1] > bound * unit
    other = ours.argmax(1) != theirs.argmax(1)
    difference = (ours - theirs).abs().max().item() / unit
    return Agreement(
        difference, scale, int((clear & other).sum().item()), int((~clear).sum().item())
    )


def per_token(ours: Tensor, theirs: Tensor) -> float:
    """Median over the tokens of each one's largest difference, as it is (`[tokens, vocab]`)."""
    return (ours - theirs).abs().amax(1).median().item()

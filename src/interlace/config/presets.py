"""Models by name: the two published ones, small ones of the same make, and those of benchmarks.

They live beside the formulas and not beside the modules, so that sizing a model needs no torch.
"""

from collections.abc import Callable
from typing import Any

from interlace.config.hybrid import HybridConfig
from interlace.errors import ConfigError

K3_QUANTIZATION: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "format": "mxfp4-pack-quantized",
            "input_activations": None,
            "output_activations": None,
            "targets": ["Linear"],
            "weights": {
                "actorder": None,
                "block_structure": None,
                "dynamic": False,
                "group_size": 32,
                "num_bits": 4,
                "observer": "minmax",
                "observer_kwargs": {},
                "scale_dtype": "torch.uint8",
                "strategy": "group",
                "symmetric": True,
                "type": "float",
                "zp_dtype": None,
            },
        }
    },
    "format": "mxfp4-pack-quantized",
    "global_compression_ratio": None,
    "ignore": [
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        "re:.*lm_head.*",
        "re:.*vision_tower.*",
        "re:.*mm_projector.*",
    ],
    "kv_cache_scheme": None,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
"""The published form of K3's packed experts; it is kept on save, so it is given literally."""

# head sizes that both published models share
_PUBLISHED_HEADS: dict[str, Any] = {
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "kda_head_dim": 128,
}
_PUBLISHED_TOKENS: dict[str, Any] = {
    "vocab_size": 163_840,
    "bos_token_id": 163_584,
    "eos_token_id": 163_586,
    "pad_token_id": 163_839,
}


def _layers(num_layers: int, ratio: int | None = 3, final_global: bool = True) -> dict[str, Any]:
    kda, full = HybridConfig.layout(num_layers, ratio, final_global)
    return {"num_hidden_layers": num_layers, "kda_layers": kda, "full_attn_layers": full}


def _kimi_k3() -> HybridConfig:
    return HybridConfig(
        **_PUBLISHED_TOKENS,
        **_PUBLISHED_HEADS,
        **_layers(93),
        hidden_size=7168,
        num_attention_heads=96,
        q_lora_rank=1536,
        mla_use_output_gate=True,
        kda_num_heads=96,
        gate_lower_bound=-5.0,
        use_full_rank_gate=True,
        intermediate_size=33_792,
        hidden_act="situ",
        activation_situ_beta=4.0,
        activation_situ_linear_beta=25.0,
        num_experts=896,
        num_experts_per_token=16,
        moe_intermediate_size=3072,
        num_shared_experts=2,
        first_k_dense_replace=1,
        routed_expert_hidden_size=3584,
        latent_moe_use_norm=True,
        attn_res_block_size=12,
        model_type="kimi_k3",
        quantization=K3_QUANTIZATION,
    )


def _kimi_linear_48b() -> HybridConfig:
    return HybridConfig(
        **_PUBLISHED_TOKENS,
        **_PUBLISHED_HEADS,
        **_layers(27),
        hidden_size=2304,
        num_attention_heads=32,
        kda_num_heads=32,
        intermediate_size=9216,
        num_experts=256,
        num_experts_per_token=8,
        moe_intermediate_size=1024,
        num_shared_experts=1,
        first_k_dense_replace=1,
        routed_scaling_factor=2.446,
    )


def _kimi_linear_tiny() -> HybridConfig:
    return HybridConfig(
        **_layers(4),
        vocab_size=256,
        hidden_size=64,
        num_attention_heads=4,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        kv_lora_rank=32,
        kda_num_heads=4,
        kda_head_dim=16,
        intermediate_size=96,
        num_experts=8,
        num_experts_per_token=2,
        moe_intermediate_size=32,
        num_shared_experts=1,
        first_k_dense_replace=1,
        routed_scaling_factor=2.446,
        dtype="float32",
    )


def _kimi_k3_tiny() -> HybridConfig:
    return HybridConfig(
        # the last two layers are both global, as in the release; three blocks, the last not full
        **_layers(5),
        vocab_size=256,
        hidden_size=64,
        num_attention_heads=4,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        kv_lora_rank=32,
        q_lora_rank=24,
        mla_use_output_gate=True,
        kda_num_heads=4,
        kda_head_dim=16,
        gate_lower_bound=-5.0,
        use_full_rank_gate=True,
        intermediate_size=96,
        hidden_act="situ",
        activation_situ_beta=4.0,
        activation_situ_linear_beta=25.0,
        num_experts=8,
        num_experts_per_token=2,
        moe_intermediate_size=32,
        num_shared_experts=2,
        first_k_dense_replace=1,
        routed_expert_hidden_size=32,
        latent_moe_use_norm=True,
        attn_res_block_size=2,
        dtype="float32",
        model_type="kimi_k3",
    )


def _kimi_k3_small() -> HybridConfig:
    # K3's proportions where they can be kept: heads per width, half-width latent, feed-forwards,
    # blocks; fewer and fewer chosen experts. 3.4 GB on disk
    return HybridConfig(
        **_PUBLISHED_HEADS,
        **_layers(21),
        vocab_size=32_768,
        hidden_size=1536,
        num_attention_heads=20,
        q_lora_rank=384,
        mla_use_output_gate=True,
        kda_num_heads=20,
        gate_lower_bound=-5.0,
        use_full_rank_gate=True,
        intermediate_size=7168,
        hidden_act="situ",
        activation_situ_beta=4.0,
        activation_situ_linear_beta=25.0,
        num_experts=128,
        num_experts_per_token=8,
        moe_intermediate_size=640,
        num_shared_experts=2,
        first_k_dense_replace=1,
        routed_expert_hidden_size=768,
        latent_moe_use_norm=True,
        attn_res_block_size=3,
        model_type="kimi_k3",
        quantization=K3_QUANTIZATION,
    )


def _default() -> HybridConfig:
    # nine layers rather than thirteen: see docs/log.md
    return HybridConfig(
        **_layers(9),
        # 256 bytes, the start of a document, its end
        vocab_size=258,
        bos_token_id=256,
        eos_token_id=257,
        hidden_size=192,
        num_attention_heads=2,
        qk_nope_head_dim=48,
        qk_rope_head_dim=16,
        v_head_dim=64,
        kv_lora_rank=64,
        mla_use_output_gate=True,
        kda_num_heads=2,
        kda_head_dim=64,
        gate_lower_bound=-5.0,
        use_full_rank_gate=True,
        intermediate_size=448,
        model_type="kimi_k3",
    )


def _default_k3() -> HybridConfig:
    # the same mixers, width and size as `default`; all else as in K3: three blocks of three layers
    return _default().replace(
        q_lora_rank=64,
        hidden_act="situ",
        activation_situ_beta=4.0,
        activation_situ_linear_beta=25.0,
        num_experts=8,
        num_experts_per_token=2,
        moe_intermediate_size=64,
        num_shared_experts=2,
        first_k_dense_replace=1,
        routed_expert_hidden_size=96,
        latent_moe_use_norm=True,
        attn_res_block_size=3,
    )


def _mid() -> HybridConfig:
    return HybridConfig(
        **_PUBLISHED_HEADS,
        **_layers(8),
        vocab_size=4096,
        hidden_size=1024,
        num_attention_heads=16,
        kda_num_heads=16,
        intermediate_size=2048,
    )


def _kl2() -> HybridConfig:
    return HybridConfig(
        **_PUBLISHED_HEADS,
        **_layers(4),
        vocab_size=4096,
        hidden_size=2304,
        num_attention_heads=32,
        kda_num_heads=32,
        intermediate_size=4096,
    )


def _kl_moe() -> HybridConfig:
    return _kl2().replace(
        num_experts=64,
        num_experts_per_token=8,
        moe_intermediate_size=1024,
        num_shared_experts=1,
        routed_scaling_factor=2.446,
    )


def _all_mla(hybrid: Callable[[], HybridConfig]) -> Callable[[], HybridConfig]:
    """The same model with every layer Gated MLA, which benchmarks set the hybrid against."""

    def make() -> HybridConfig:
        config = hybrid()
        return config.replace(
            **_layers(config.num_hidden_layers, ratio=0), kda_num_heads=0, kda_head_dim=0
        )

    return make


PRESETS: dict[str, Callable[[], HybridConfig]] = {
    "kimi-k3": _kimi_k3,
    "kimi-linear-48b": _kimi_linear_48b,
    "kimi-k3-small": _kimi_k3_small,
    "kimi-k3-tiny": _kimi_k3_tiny,
    "kimi-linear-tiny": _kimi_linear_tiny,
    "kimi-linear-tiny-mla": _all_mla(_kimi_linear_tiny),
    "default": _default,
    "default-k3": _default_k3,
    "mid": _mid,
    "mid-mla": _all_mla(_mid),
    "kl2": _kl2,
    "kl2-mla": _all_mla(_kl2),
    "kl-moe": _kl_moe,
    "kl-moe-mla": _all_mla(_kl_moe),
}
"""A maker for each name."""


def preset(name: str) -> HybridConfig:
    """The config of this name.

    Raises:
        ConfigError: no preset has this name; the message lists those there are.
    """
    if name not in PRESETS:
        raise ConfigError(f"no preset is named {name!r}; use one of {', '.join(PRESETS)}")
    return PRESETS[name]()

"""Writing the published `config.json` files, which `interlace.config.published` reads back.

A model that the `kimi_linear` class can express is written for it, so that others can load it; any
other in the form of `kimi_k3`, where what it does not use is null. Spec section 1.
"""

from copy import deepcopy
from typing import Any

from interlace.config.hybrid import HybridConfig

# fields whose published name is ours
_SAME = """
    vocab_size hidden_size num_hidden_layers num_attention_heads qk_nope_head_dim
    qk_rope_head_dim v_head_dim kv_lora_rank q_lora_rank intermediate_size hidden_act
    num_experts num_experts_per_token moe_intermediate_size num_shared_experts
    first_k_dense_replace moe_layer_freq moe_renormalize routed_scaling_factor
    num_expert_group topk_group rms_norm_eps initializer_range tie_word_embeddings
    bos_token_id eos_token_id pad_token_id dtype
""".split()  # noqa: SIM905 - a name a line would hide what the list says


def write_published(config: HybridConfig) -> dict[str, Any]:
    """The dictionary of a published `config.json`, for the class `config.published_class`.

    `read_published` of it gives an equal config.
    """
    if config.published_class == "kimi_linear":
        return _write_kimi_linear(config)
    text = _write_common(config)
    linear = text["linear_attn_config"]
    linear["gate_lower_bound"] = config.gate_lower_bound
    linear["use_full_rank_gate"] = config.use_full_rank_gate
    text.update(
        activation_situ_beta=config.activation_situ_beta,
        activation_situ_linear_beta=config.activation_situ_linear_beta,
        attn_res_block_size=config.attn_res_block_size,
        latent_moe_use_norm=config.latent_moe_use_norm,
        max_position_embeddings=config.max_position_embeddings,
        mla_use_output_gate=config.mla_use_output_gate,
        routed_expert_hidden_size=config.routed_expert_hidden_size,
        topk_method="noaux_tc",
    )
    shared = ("bos_token_id", "dtype", "eos_token_id", "pad_token_id", "tie_word_embeddings")
    return {
        "architectures": ["KimiK3ForConditionalGeneration"],
        "model_type": "kimi_k3",
        "text_config": text,
        **{key: text[key] for key in shared},
    }


def _write_kimi_linear(config: HybridConfig) -> dict[str, Any]:
    text = _write_common(config)
    if config.num_experts is None:
        # no null here: the class of transformers takes none
        for name in ("num_experts", "num_experts_per_token", "moe_intermediate_size"):
            del text[name]
    text.update(
        model_max_length=config.max_position_embeddings,
        rope_scaling=None,
        rope_theta=10000.0,
    )
    if config.num_attention_heads:
        text["head_dim"] = config.hidden_size // config.num_attention_heads
    return text


def _write_common(config: HybridConfig) -> dict[str, Any]:
    text: dict[str, Any] = {name: getattr(config, name) for name in _SAME}
    if config.num_experts is None:
        # transformers fills a missing expert count with 256, so every layer has to be called dense
        text["first_k_dense_replace"] = config.num_hidden_layers
    text.update(
        architectures=["KimiLinearForCausalLM"],
        model_type="kimi_linear",
        linear_attn_config={
            "full_attn_layers": list(config.full_attn_layers),
            "head_dim": config.kda_head_dim,
            "kda_layers": list(config.kda_layers),
            "num_heads": config.kda_num_heads,
            "short_conv_kernel_size": config.short_conv_kernel_size,
        },
        mla_use_nope=True,
        moe_router_activation_func="sigmoid",
        num_key_value_heads=config.num_attention_heads,
        num_nextn_predict_layers=0,
        use_cache=True,
        use_grouped_topk=True,
    )
    if config.quantization is not None:
        text["quantization_config"] = deepcopy(dict(config.quantization))
    return text

"""Who else reads a checkpoint of ours, as far as it was tried (spec section 10).

transformers reads the layout of Kimi Linear, llama.cpp that and K3's, each with less room than a
`HybridConfig` has. What is said here of llama.cpp was tried with llama-cpp-python 0.3.36; models of
both layouts that it takes are compared with it by `make peers`. Standard library only.
"""

from interlace.config import HybridConfig

__all__ = ["llama_cpp_lacks", "readers"]

_TRANSFORMERS = "transformers 5.24 or later (KimiLinearForCausalLM)"
_LLAMA_CPP = "llama.cpp as of llama-cpp-python 0.3.36 (its converter, given Kimi's own tokenizer)"


def readers(config: HybridConfig) -> tuple[str, ...]:
    """Names and versions of the systems that read a checkpoint of this config."""
    found = (_TRANSFORMERS,) if _transformers_reads(config) else ()
    return found if llama_cpp_lacks(config) else (*found, _LLAMA_CPP)


def _transformers_reads(config: HybridConfig) -> bool:
    if config.published_class != "kimi_linear" or config.quantization is not None:
        return False
    # the class of transformers does not tie, ignores moe_layer_freq and always has shared experts
    plain = not config.tie_word_embeddings and config.moe_layer_freq == 1
    return plain and (config.num_experts is None or config.num_shared_experts > 0)


def llama_cpp_lacks(config: HybridConfig) -> str | None:
    """What such a model has, or has not, that llama.cpp gets wrong; None where it runs it.

    Some of these it refuses, some end its process, and three (shares of experts that are not
    normalised, no shared experts, groups of experts) it runs in silence and computes otherwise.
    """
    k3 = config.published_class == "kimi_k3"
    reasons = _of_both(config) + (_of_k3(config) if k3 else _of_kimi_linear(config))
    return next((reason for wrong, reason in reasons if wrong), None)


_Reasons = list[tuple[bool, str]]


def _of_both(config: HybridConfig) -> _Reasons:
    heads = config.num_attention_heads, config.kda_num_heads
    return [
        (not config.num_kda_layers, "no KDA layer"),
        (not config.num_global_layers, "no Gated MLA layer"),
        (heads[0] != heads[1], f"{heads[0]} heads in Gated MLA and {heads[1]} in KDA"),
        (config.tie_word_embeddings, "tied embeddings"),
        (config.moe_layer_freq != 1, f"moe_layer_freq {config.moe_layer_freq}"),
        (config.topk_group < config.num_expert_group, "a choice among groups of experts"),
    ]


def _of_kimi_linear(config: HybridConfig) -> _Reasons:
    experts = config.num_experts is not None
    return [
        (config.quantization is not None, "quantised weights in the layout of Kimi Linear"),
        (config.q_lora_rank is not None, "a query of low rank in the layout of Kimi Linear"),
        (experts and not config.moe_renormalize, "moe_renormalize false"),
        (experts and not config.num_shared_experts, "no shared experts"),
    ]


def _of_k3(config: HybridConfig) -> _Reasons:
    return [
        (not config.attn_res_block_size, "no blocks of Attention Residuals"),
        (config.hidden_act != "situ", f"hidden_act {config.hidden_act!r} in the layout of K3"),
        (
            None in (config.activation_situ_beta, config.activation_situ_linear_beta),
            "a SiTU without both caps",
        ),
        (not config.use_full_rank_gate, "a gate of low rank in KDA in the layout of K3"),
        (config.num_experts is None, "no experts in the layout of K3"),
    ]

"""Taking the keys of a foreign `config.json`, so that none is guessed or lost in silence.

A key is read, or on the list of those that change no size, or named in the plan's notes. A value
that the class of transformers fills in is allowed where the published files leave it out; it is
named too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from interlace.errors import ConfigError
from interlace.planner.description import Stored

__all__ = ["Keys"]

# keys that change neither a size nor an operation that is counted here
_IGNORED = frozenset(
    """
    architectures auto_map transformers_version _name_or_path name_or_path torchscript use_cache
    _attn_implementation _attn_implementation_autoset _commit_hash attn_implementation
    bos_token_id eos_token_id pad_token_id sep_token_id initializer_range initializer_factor
    hidden_act hidden_activation mlp_hidden_act mamba_hidden_act rms_norm_eps layer_norm_epsilon
    layer_norm_eps norm_eps attention_dropout hidden_dropout hidden_dropout_prob classifier_dropout
    attention_probs_dropout_prob resid_pdrop embd_pdrop rope_theta rope_scaling rope_parameters
    rope_local_base_freq rope_interleave partial_rotary_factor cache_implementation pretraining_tp
    output_attentions output_hidden_states output_scores return_dict return_dict_in_generate
    chunk_size_feed_forward is_encoder_decoder is_decoder add_cross_attention
    cross_attention_hidden_size problem_type id2label label2id num_labels finetuning_task
    task_specific_params tokenizer_class prefix bad_words_ids pruned_heads tie_encoder_decoder
    tf_legacy_loss use_bfloat16 remove_invalid_values max_length min_length do_sample
    early_stopping num_beams num_beam_groups num_return_sequences diversity_penalty temperature
    top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size forced_bos_token_id forced_eos_token_id suppress_tokens
    begin_suppress_tokens exponential_decay_length_penalty decoder_start_token_id
    output_router_logits router_aux_loss_coef aux_loss_alpha seq_aux router_jitter_noise
    norm_topk_prob topk_method topk_group n_group num_expert_group scoring_func
    routed_scaling_factor ep_size swiglu_limit swiglu_alpha initial_context_length
    query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping logit_cap
    use_bidirectional_attention model_max_length position_embedding_type
    use_mamba_kernels use_mambapy use_associative_scan chunk_size mamba_chunk_size
    time_step_min time_step_max time_step_limit time_step_floor time_step_rank
    rescale_prenorm_residual residual_in_fp32 num_logits_to_keep moe_shared_expert_overlap
    attn_output_gate output_gate_type mamba_ssm_dtype full_attn_layer_ids quantize _comment
    """.split()  # noqa: SIM905 - a name a line would hide what the list says
)

# parts beside the text model, and the keys that only they read
_OTHER_PARTS = {
    "vision_config": "the vision tower",
    "audio_config": "the audio tower",
    "mtp_layers_block_type": "",
}

_DTYPES = {"bfloat16", "float16", "float32", "float64"}


class Keys:
    """Takes each key out of a copy of a config; what is left at the end is named.

    Args:
        config: the mapping of a `config.json`, or its text part.
        family: its `model_type`.
    """

    def __init__(self, config: Mapping[str, Any], family: str) -> None:
        self.left = dict(config)
        self.family = family
        self.notes: list[str] = []
        self.defaults: list[str] = []

    def take(self, *names: str) -> Any:
        """The value of the one of these names that is there; None where none is, or null."""
        given = {name: self.left.pop(name) for name in names if name in self.left}
        values = [value for value in given.values() if value is not None]
        if any(value != values[0] for value in values[1:]):
            raise ConfigError(f"{' and '.join(given)} must agree, got {values!r}; correct one")
        return values[0] if values else None

    def count(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least `least`.

        Args:
            names: of the key; the first is the one that messages name.
            default: what the class of transformers takes where the key is missing; it is noted.
            least: smallest that makes sense.

        Raises:
            ConfigError: a missing key without default, or another value.
        """
        value = self.take(*names)
        if value is None:
            if default is None:
                raise ConfigError(
                    f"{names[0]} is missing in this {self.family} config, and no size can be told "
                    "without it; add it"
                )
            self.defaults.append(f"{names[0]} = {default}")
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(
                f"{names[0]} must be an integer of at least {least}, got {value!r}; correct it"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false; missing means what the family's class takes."""
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{name} must be true or false, got {value!r}; correct it")
        return value

    def refuse(self, name: str, usual: Any, why: str) -> None:
        """Refuse another value than the usual one, whose sizes are not known here."""
        value = self.take(name)
        if value is not None and value != usual:
            raise ConfigError(f"{name} must be {usual!r}, got {value!r}; {why}")

    def heads(self) -> tuple[int, int]:
        """Query heads, and heads of keys and values that divide them."""
        heads = self.count("num_attention_heads")
        kv_heads = self.take("num_key_value_heads")
        if kv_heads is None:
            self.defaults.append(f"num_key_value_heads = {heads} (as many as queries)")
            return heads, heads
        if not isinstance(kv_heads, int) or kv_heads < 1 or heads % kv_heads:
            raise ConfigError(
                f"num_key_value_heads must divide num_attention_heads, got {kv_heads!r} and "
                f"{heads}; correct one"
            )
        return heads, kv_heads

    def head_dim(self, hidden: int, heads: int, *names: str) -> int:
        """The head's width; hidden width over heads only where it is missing and they divide."""
        given = self.take(*(names or ("head_dim",)))
        if given is None:
            if hidden % heads:
                raise ConfigError(
                    f"head_dim is missing, and hidden_size {hidden} is no multiple of "
                    f"num_attention_heads {heads}; add head_dim"
                )
            self.defaults.append(f"head_dim = {hidden // heads} (hidden_size over heads)")
            return hidden // heads
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise ConfigError(f"head_dim must be a positive integer, got {given!r}; correct it")
        return given

    def names_of_layers(self, key: str, layers: int, known: Mapping[str, str]) -> list[str] | None:
        """What each layer is, from a list of names, or None where the list is missing."""
        names = self.take(key)
        if names is None:
            return None
        if not isinstance(names, Sequence) or isinstance(names, str) or len(names) != layers:
            shown = len(names) if isinstance(names, Sequence) else repr(names)
            raise ConfigError(
                f"{key} must name each of num_hidden_layers {layers}, got {shown}; correct one"
            )
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"{key} must hold {', '.join(known)}, got {name!r}; what such a layer keeps is "
                    "not known"
                )
        return [known[name] for name in names]

    def dtype(self) -> str:
        """Of the weights; bfloat16 where the file does not say, which is noted."""
        value = self.take("dtype", "torch_dtype")
        if value is None:
            self.notes.append("the config names no dtype: bfloat16 is assumed")
            return "bfloat16"
        name = str(value).removeprefix("torch.")
        if name not in _DTYPES:
            raise ConfigError(f"dtype must be one of {', '.join(sorted(_DTYPES))}, got {value!r}")
        return name

    def stored(self) -> Stored | None:
        """How the checkpoint packs its weights."""
        packing = self.take("quantization_config")
        if packing is None:
            return None
        if not isinstance(packing, Mapping):
            raise ConfigError(f"quantization_config must be an object, got {packing!r}; correct it")
        method = packing.get("quant_method")
        if method == "fp8" and packing.get("weight_block_size", [128, 128]) == [128, 128]:
            return Stored("fp8")
        if method == "mxfp4":
            return Stored("mxfp4", frozenset({"routed experts"}))
        if method == "compressed-tensors" and self.family.startswith("kimi"):
            groups = packing.get("config_groups")
            first = groups.get("group_0", {}) if isinstance(groups, Mapping) else {}
            weights = first.get("weights", {}) if isinstance(first, Mapping) else {}
            if weights.get("num_bits") == 4 and weights.get("group_size", 32) == 32:
                self.notes.append("packed are the routed experts alone, as Moonshot publishes them")
                return Stored("int4", frozenset({"routed experts"}))
        return Stored(f"unknown: {method}")

    def finish(self) -> tuple[str, ...]:
        """What to tell about the keys; to be called last."""
        predicted = self.take("num_nextn_predict_layers", "mtp_num_hidden_layers")
        if predicted:
            self.notes.append(
                f"not counted: {predicted} layer{'s' if predicted != 1 else ''} that predict "
                "further tokens"
            )
        for key, what in _OTHER_PARTS.items():
            if self.left.pop(key, None) is not None and what:
                self.notes.append(f"not counted: {what}")
        unknown = sorted(
            key
            for key, value in self.left.items()
            if key not in _IGNORED and value is not None and value is not False
        )
        if unknown:
            self.notes.append(f"keys whose effect is not known: {', '.join(unknown)}")
        if self.defaults:
            self.notes.append(f"not in the config, from its class: {', '.join(self.defaults)}")
        return tuple(self.notes)

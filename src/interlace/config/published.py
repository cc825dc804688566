"""Reading the published `config.json` files: `kimi_linear`, and `kimi_k3` with its `text_config`.

Everything here is strict. A key is read, or on the list of keys that change nothing, or refused by
name; a value that is said twice must be said the same way twice; and what no released model has (a
rotation, a softmax router, biases) is refused instead of ignored. What transformers saves differs
from what was published (layer types by name, sizes outside `linear_attn_config`) and is read too.
Spec sections 1 and 2.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from interlace.config.hybrid import MODEL_TYPES, HybridConfig
from interlace.errors import ConfigError

# keys that may be there and change nothing: generation defaults and bookkeeping of the host
# library, values that are derived (head_dim, num_key_value_heads: spec 1.1) and the size of a
# rotation that no released model makes
_IGNORED = frozenset(
    """
    architectures auto_map transformers_version _name_or_path _attn_implementation
    _attn_implementation_autoset _commit_hash name_or_path
    head_dim num_key_value_heads rope_theta use_cache pretraining_tp output_router_logits
    max_length min_length top_k top_p temperature typical_p num_beams num_beam_groups
    num_return_sequences do_sample length_penalty repetition_penalty diversity_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size chunk_size_feed_forward id2label label2id
    is_decoder is_encoder_decoder add_cross_attention cross_attention_hidden_size
    output_attentions output_hidden_states output_scores pruned_heads return_dict
    return_dict_in_generate remove_invalid_values early_stopping tf_legacy_loss
    tie_encoder_decoder torchscript use_bfloat16 bad_words_ids begin_suppress_tokens
    decoder_start_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id prefix problem_type sep_token_id suppress_tokens task_specific_params
    tokenizer_class
    """.split()  # noqa: SIM905 - a name a line would hide what the list says
)

# the same beside K3's text_config: the vision tower is no part of the text model
_IGNORED_OUTSIDE = _IGNORED | {
    "ignore_index",
    "image_placeholder",
    "media_placeholder_token_id",
    "vision_config",
}

# what K3 may say outside text_config as well, or only there
_SHARED = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
    "torch_dtype",
    "tie_word_embeddings",
    "quantization_config",
)

_LAYER_KINDS = {
    "linear_attention": "kda",
    "kda_attention": "kda",
    "full_attention": "full",
}

_NO_EXPERTS: dict[str, Any] = {
    "num_experts": None,
    "num_experts_per_token": None,
    "moe_intermediate_size": None,
    "num_shared_experts": 0,
    "first_k_dense_replace": 0,
    "routed_expert_hidden_size": None,
    "latent_moe_use_norm": False,
}

_EXPERT_KEYS = ("num_experts_per_token", "moe_intermediate_size", "num_shared_experts")


def read_file(path: str | Path) -> dict[str, Any]:
    """The object in a `config.json`, given as the file or as the folder that holds it.

    Raises:
        ConfigError: no such file, unreadable, not JSON, or not an object.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"{file} does not exist; give a checkpoint folder or its config.json"
        ) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror}); check the path") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid JSON ({error}); fetch the file again") from None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{file} must hold one JSON object, got {type(found).__name__}; "
            "give the config.json of a checkpoint"
        )
    return found


def read_published(published: object) -> HybridConfig:
    """The config that a published dictionary describes.

    Args:
        published: the contents of a `config.json` of `kimi_linear` or `kimi_k3`, as published or as
            saved by transformers.

    Raises:
        ConfigError: another architecture, or a key that is unknown, missing or contradictory.
    """
    if not isinstance(published, Mapping):
        raise ConfigError(f"a config must be a mapping, got {type(published).__name__}")
    model_type = published.get("model_type")
    if model_type is None:
        raise ConfigError(
            f"model_type is missing; it must be one of {', '.join(MODEL_TYPES)}, which say what "
            "the other keys mean"
        )
    if model_type not in MODEL_TYPES:
        raise ConfigError(
            f"model_type must be one of {', '.join(MODEL_TYPES)}, got {model_type!r}; "
            "models of another architecture cannot be built"
        )
    if model_type == "kimi_k3":
        return _Reader(_unwrap(published)).read("kimi_k3")
    return _Reader(published).read("kimi_linear")


def _unwrap(published: Mapping[str, Any]) -> dict[str, Any]:
    """K3's `text_config`, with what stands outside it and concerns the text."""
    text = published.get("text_config")
    if not isinstance(text, Mapping):
        raise ConfigError(
            f"text_config must be an object in a kimi_k3 config, got {text!r}; the text model's "
            "keys belong in it"
        )
    inner = dict(text)
    if inner.get("model_type", "kimi_linear") != "kimi_linear":
        raise ConfigError(
            f"text_config.model_type must be 'kimi_linear', got {inner['model_type']!r}; "
            "models of another architecture cannot be built"
        )
    outside = {k: v for k, v in published.items() if k not in ("model_type", "text_config")}
    for key in _SHARED:
        value = outside.pop(key, None)
        if value is None:
            continue
        if inner.get(key) is None:
            inner[key] = value
        elif inner[key] != value:
            raise ConfigError(
                f"{key} is {value!r} outside text_config and {inner[key]!r} inside; "
                "make them agree or drop one"
            )
    _refuse_unknown(outside, _IGNORED_OUTSIDE)
    return inner


def _refuse_unknown(left: Mapping[str, Any], ignored: frozenset[str], where: str = "") -> None:
    unknown = sorted(f"{where}{key}" for key in left if key not in ignored)
    if unknown:
        raise ConfigError(
            f"unknown config key {', '.join(unknown)}; what it does to the model is not known, "
            "so it must be removed or supported"
        )


class _Reader:
    """Takes each key out of a copy of the dictionary; what is left at the end is unknown."""

    def __init__(self, text: Mapping[str, Any]) -> None:
        self.left = dict(text)
        self.left.pop("model_type", None)
        nested = self.left.pop("linear_attn_config", None)
        if nested is not None and not isinstance(nested, Mapping):
            raise ConfigError(f"linear_attn_config must be an object, got {nested!r}")
        self.linear: dict[str, Any] | None = None if nested is None else dict(nested)

    def take(self, key: str, default: Any = None) -> Any:
        """The value, or `default` where the key is missing or null."""
        value = self.left.pop(key, None)
        return default if value is None else value

    def need(self, key: str, why: str = "") -> Any:
        """The value of a key that must be there."""
        value = self.left.pop(key, None)
        if value is None:
            raise ConfigError(f"{key} is missing{why}; add it to the config")
        return value

    def agree(self, *spellings: tuple[str, Any]) -> Any:
        """The one value of several spellings of the same thing; None where none is given."""
        given = [(name, value) for name, value in spellings if value is not None]
        for name, value in given[1:]:
            if value != given[0][1]:
                raise ConfigError(
                    f"{given[0][0]} says {given[0][1]!r} and {name} says {value!r}; "
                    "make them agree or drop one"
                )
        return given[0][1] if given else None

    def read(self, model_type: str) -> HybridConfig:
        self.refuse_unreleased(model_type)
        layers = self.need("num_hidden_layers")
        if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
            raise ConfigError(f"num_hidden_layers must be a positive integer, got {layers!r}")
        fields: dict[str, Any] = {
            "model_type": model_type,
            "num_hidden_layers": layers,
            **self.read_mixers(layers),
            **self.read_experts(layers),
            **self.read_rest(),
        }
        config = HybridConfig(**fields)
        width = self.take("qk_head_dim", config.qk_head_dim)
        if width != config.qk_head_dim:
            raise ConfigError(
                f"qk_head_dim is {width!r}, but qk_nope_head_dim + qk_rope_head_dim is "
                f"{config.qk_head_dim}; drop it or correct it"
            )
        _refuse_unknown(self.left, _IGNORED)
        return config

    def refuse_unreleased(self, model_type: str) -> None:
        """What no released model has, and what would change every logit if it were ignored."""
        # absent means no rotation in what transformers saves, and the opposite in K3's own class
        nope = self.take("mla_use_nope", model_type == "kimi_linear")
        refused: list[tuple[str, Any, bool, str]] = [
            ("mla_use_nope", nope, nope is True, "true"),
        ]
        expected: tuple[tuple[str, Any, Callable[[Any], bool], str], ...] = (
            ("moe_router_activation_func", "sigmoid", lambda v: v == "sigmoid", "'sigmoid'"),
            ("topk_method", "noaux_tc", lambda v: v == "noaux_tc", "'noaux_tc'"),
            ("attention_bias", False, lambda v: v is False, "false"),
            ("attention_dropout", 0.0, lambda v: v == 0 and v is not False, "0"),
            ("num_nextn_predict_layers", 0, lambda v: v == 0 and v is not False, "0"),
            ("rope_scaling", None, _is_plain_rope, "null"),
            ("rope_parameters", None, _is_plain_rope, "null or of type default"),
        )
        for key, default, fits, text in expected:
            value = self.take(key, default)
            refused.append((key, value, fits(value), text))
        for key, value, fits_value, text in refused:
            if not fits_value:
                raise ConfigError(
                    f"{key} must be {text}, got {value!r}; no released model has anything else"
                )

    def read_mixers(self, layers: int) -> dict[str, Any]:
        kda, full = self.read_layout(layers)
        linear = {} if self.linear is None else self.linear
        sizes: dict[str, Any] = {}
        for name, nested, flat in (
            ("kda_head_dim", "head_dim", "linear_head_dim"),
            ("kda_num_heads", "num_heads", "linear_num_heads"),
            ("short_conv_kernel_size", "short_conv_kernel_size", "linear_conv_kernel_dim"),
        ):
            value = self.agree(
                (f"linear_attn_config.{nested}", linear.pop(nested, None)),
                (flat, self.take(flat)),
            )
            if value is None and kda:
                raise ConfigError(
                    f"linear_attn_config.{nested} is missing (or {flat}, as transformers writes "
                    "it); the KDA layers need it"
                )
            if value is not None:
                sizes[name] = value
        sizes["gate_lower_bound"] = linear.pop("gate_lower_bound", None)
        sizes["use_full_rank_gate"] = _or(linear.pop("use_full_rank_gate", None), False)
        _refuse_unknown(linear, frozenset(), "linear_attn_config.")
        for name in (
            "num_attention_heads",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "kv_lora_rank",
        ):
            sizes[name] = self.need(name) if full else self.take(name, 0)
        rank = self.take("q_lora_rank")
        # both spellings of "no low rank" are met in the wild
        sizes["q_lora_rank"] = None if rank == 0 and rank is not False else rank
        sizes["mla_use_output_gate"] = self.take("mla_use_output_gate", False)
        return {"kda_layers": kda, "full_attn_layers": full, **sizes}

    def read_layout(self, layers: int) -> tuple[Any, Any]:
        """Both layer lists, from `linear_attn_config`, from `layer_types`, or from both alike."""
        types = self.take("layer_types")
        linear = {} if self.linear is None else self.linear
        lists = {name: linear.pop(name, None) for name in ("kda_layers", "full_attn_layers")}
        if types is None:
            if self.linear is None:
                raise ConfigError(
                    "linear_attn_config is missing, and so is layer_types with the linear_* sizes; "
                    "one of them must say which layers are KDA"
                )
            for name, value in lists.items():
                if value is None:
                    raise ConfigError(
                        f"linear_attn_config.{name} is missing; both lists are needed, 1-based"
                    )
            return lists["kda_layers"], lists["full_attn_layers"]
        kinds = _by_name("layer_types", types, _LAYER_KINDS, layers)
        named = {
            "kda_layers": [i for i, kind in enumerate(kinds, 1) if kind == "kda"],
            "full_attn_layers": [i for i, kind in enumerate(kinds, 1) if kind == "full"],
        }
        for name, value in lists.items():
            # a list that is not even one is left for the config's own check to name
            if isinstance(value, list | tuple) and sorted(value, key=str) != sorted(
                named[name], key=str
            ):
                raise ConfigError(
                    f"linear_attn_config.{name} is {list(value)!r}, but layer_types says "
                    f"{named[name]!r}; make them agree or drop one"
                )
        return tuple(_or(lists[name], named[name]) for name in lists)

    def read_experts(self, layers: int) -> dict[str, Any]:
        experts = self.take("num_experts")
        types = self.take("mlp_layer_types")
        sparse = (
            None
            if types is None
            else _by_name("mlp_layer_types", types, {"dense": False, "sparse": True}, layers)
        )
        first, freq = self.take("first_k_dense_replace"), self.take("moe_layer_freq", 1)
        fields: dict[str, Any] = {
            "num_experts": experts,
            "moe_layer_freq": freq,
            "num_expert_group": self.take("num_expert_group", 1),
            "topk_group": self.take("topk_group", 1),
            "routed_expert_hidden_size": self.take("routed_expert_hidden_size"),
            "latent_moe_use_norm": self.take("latent_moe_use_norm", False),
            "moe_renormalize": self.take("moe_renormalize"),
            "routed_scaling_factor": self.take("routed_scaling_factor"),
        }
        grouped = self.take("use_grouped_topk", True)
        if grouped is not True and fields["num_expert_group"] != 1:
            raise ConfigError(
                f"use_grouped_topk is {grouped!r}, but num_expert_group is "
                f"{fields['num_expert_group']!r}; set it to true or the groups to 1"
            )
        for key in _EXPERT_KEYS:
            # an explicit null says "none"; only an absent key leaves open which default is meant
            if experts is not None and key not in self.left:
                raise ConfigError(f"{key} is missing; a config with num_experts must say it")
            fields[key] = self.take(key, 0 if key == "num_shared_experts" else None)
        for key, unused in (("moe_renormalize", True), ("routed_scaling_factor", 1.0)):
            if fields[key] is None:
                if experts is not None:
                    raise ConfigError(f"{key} is missing; a config with num_experts must say it")
                fields[key] = unused
        if experts is not None and first is None and sparse is None:
            raise ConfigError(
                "first_k_dense_replace is missing, and so is mlp_layer_types; one of them must "
                "say which layers have experts"
            )
        if first is None:
            first = sparse.index(True) if sparse and True in sparse else layers
        fields["first_k_dense_replace"] = first
        if experts is None and sparse and True in sparse:
            raise ConfigError(
                f"mlp_layer_types calls layer {sparse.index(True) + 1} sparse, but num_experts "
                "is missing; add it"
            )
        if sparse is not None and experts is not None:
            _check_pattern(sparse, first, freq)
        if _is_count(first) and first >= layers:
            # a dense model as transformers saves it: expert sizes of its own, and no layer for them
            return {**fields, **_NO_EXPERTS}
        return {**fields, "first_k_dense_replace": 0} if experts is None else fields

    def read_rest(self) -> dict[str, Any]:
        eos = self.take("eos_token_id")
        if isinstance(eos, list) and len(eos) == 1:
            eos = eos[0]
        fields: dict[str, Any] = {
            "vocab_size": self.need("vocab_size"),
            "hidden_size": self.need("hidden_size"),
            "intermediate_size": self.need("intermediate_size"),
            "hidden_act": self.need("hidden_act"),
            "activation_situ_beta": self.take("activation_situ_beta") or None,
            "activation_situ_linear_beta": self.take("activation_situ_linear_beta"),
            "attn_res_block_size": self.take("attn_res_block_size"),
            # the two classes have different defaults, so it has to be said
            "rms_norm_eps": self.need("rms_norm_eps"),
            "initializer_range": self.take("initializer_range", 0.02),
            "tie_word_embeddings": self.take("tie_word_embeddings", False),
            "bos_token_id": self.take("bos_token_id"),
            "eos_token_id": eos,
            "pad_token_id": self.take("pad_token_id"),
            "quantization": self.take("quantization_config"),
        }
        longest = self.agree(
            ("max_position_embeddings", self.take("max_position_embeddings")),
            ("model_max_length", self.take("model_max_length")),
        )
        if longest is not None:
            fields["max_position_embeddings"] = longest
        dtype = self.agree(("dtype", self.take("dtype")), ("torch_dtype", self.take("torch_dtype")))
        if dtype is not None:
            fields["dtype"] = dtype
        return fields


def _check_pattern(sparse: list[bool], first: Any, freq: Any) -> None:
    """Refuse names of feed-forwards that the two numbers contradict."""
    if not _is_count(first) or not _is_count(freq) or freq == 0:
        return  # left for the config's own check to name
    for i, said in enumerate(sparse):
        if said != (i >= first and i % freq == 0):
            raise ConfigError(
                f"mlp_layer_types calls layer {i + 1} {'sparse' if said else 'dense'}, but "
                f"first_k_dense_replace {first} and moe_layer_freq {freq} say otherwise; "
                "make them agree or drop one"
            )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _is_plain_rope(value: Any) -> bool:
    """Null, or the record that transformers makes of a missing one (spec section 9, trap 13)."""
    if value is None:
        return True
    return (
        isinstance(value, Mapping)
        and set(value) <= {"rope_type", "type", "rope_theta"}
        and all(value.get(key, "default") == "default" for key in ("rope_type", "type"))
    )


def _by_name(name: str, types: Any, kinds: Mapping[str, Any], layers: int) -> list[Any]:
    """The meaning of each layer's name in a list of transformers."""
    if not isinstance(types, list | tuple) or len(types) != layers:
        shown = len(types) if isinstance(types, list | tuple) else repr(types)
        raise ConfigError(
            f"{name} must be a list with one name for each of num_hidden_layers {layers}, "
            f"got {shown}; correct one"
        )
    for i, kind in enumerate(types, 1):
        if not isinstance(kind, str) or kind not in kinds:
            raise ConfigError(
                f"{name} calls layer {i} {kind!r}; it must be one of {', '.join(kinds)}"
            )
    return [kinds[kind] for kind in types]

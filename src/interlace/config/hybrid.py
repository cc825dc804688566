"""The shape of a hybrid model: which layers are KDA, which Gated MLA, and how large each part is.

One frozen record with the field names of the published `config.json` files, checked once when it is
made, so that no other room has to ask whether a layer list has a gap or an activation is known.
Layer lists are 1-based, as published; `layer_idx` of a method is 0-based, as modules are.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, no_type_check

from interlace.errors import ConfigError

LORA_NORM_EPS = 1e-6
"""Epsilon of the two low-rank norms, `q_a_layernorm` and `kv_a_layernorm` (spec section 3)."""

L2_NORM_EPS = 1e-6
"""Epsilon of the L2 norm of q and k, inside the root of the sum (spec section 5)."""

ACTIVATIONS = ("silu", "situ")
MODEL_TYPES = ("kimi_linear", "kimi_k3")
DTYPES = ("bfloat16", "float16", "float32", "float64")

# what the kimi_linear class cannot express, with the value that means "not used"
_K3_ONLY: dict[str, Any] = {
    "mla_use_output_gate": False,
    "gate_lower_bound": None,
    "use_full_rank_gate": False,
    "hidden_act": "silu",
    "routed_expert_hidden_size": None,
    "latent_moe_use_norm": False,
    "attn_res_block_size": None,
}

_FLAGS = (
    "mla_use_output_gate",
    "use_full_rank_gate",
    "moe_renormalize",
    "latent_moe_use_norm",
    "tie_word_embeddings",
)


# values come out of files and are checked below, with messages for a reader; a checker that goes by
# the annotations at run time must not get in before
@no_type_check
@dataclass(frozen=True, kw_only=True, slots=True)
class HybridConfig:
    """A validated model configuration.

    Args:
        vocab_size: rows of the embedding and of the head.
        hidden_size: width D of the residual stream.
        num_hidden_layers: layers L.
        kda_layers: 1-based indices of the KDA layers.
        full_attn_layers: 1-based indices of the Gated MLA layers; with `kda_layers` a partition of
            1..L.
        num_attention_heads: heads of a Gated MLA layer (0 where there is none).
        qk_nope_head_dim: N, the part of a query that meets the head's own key.
        qk_rope_head_dim: P, the part that meets the key shared by all heads; not rotated; may be 0.
        v_head_dim: V, value width per head.
        kv_lora_rank: R, rank of the cached latent.
        q_lora_rank: rank of the query, or None for a direct projection.
        mla_use_output_gate: multiply the attention output by a sigmoid gate of the layer's input.
        kda_num_heads: heads of a KDA layer (0 where there is none).
        kda_head_dim: K, key and value width of a KDA head.
        short_conv_kernel_size: W, taps of the short convolution.
        gate_lower_bound: lower bound of the log-decay (below 0), or None for the softplus form.
        use_full_rank_gate: one projection for the KDA output gate instead of a low-rank pair.
        intermediate_size: F of a dense feed-forward.
        hidden_act: "silu" (SwiGLU) or "situ" (SiTU-GLU).
        activation_situ_beta: soft cap of the gate branch of SiTU; None means 1.
        activation_situ_linear_beta: soft cap of its linear branch; None means no cap.
        num_experts: routed experts E of a mixture layer, or None for a dense model.
        num_experts_per_token: experts that each token visits.
        moe_intermediate_size: feed-forward width of one expert.
        num_shared_experts: experts that every token visits, fused into one MLP.
        first_k_dense_replace: leading layers that stay dense.
        moe_layer_freq: a mixture in layers whose 0-based index is a multiple of it.
        moe_renormalize: divide the chosen scores by their sum.
        routed_scaling_factor: factor on the routed output, after that division.
        num_expert_group: groups of experts of the group-limited choice.
        topk_group: groups that a token may choose from.
        routed_expert_hidden_size: width of the latent that routed experts work in, or None.
        latent_moe_use_norm: a norm before the latent is projected up again.
        attn_res_block_size: decoder layers per Attention Residuals block, or None; 0 is the full
            form, where every output stands for itself, which no published model has.
        rms_norm_eps: epsilon of all norms but the low-rank ones (`LORA_NORM_EPS`).
        initializer_range: standard deviation of a fresh linear weight.
        tie_word_embeddings: the head shares the embedding's storage.
        bos_token_id: id that opens a document, or None.
        eos_token_id: id that ends one, or None.
        pad_token_id: id of padding, or None.
        max_position_embeddings: longest context the model was made for (`model_max_length`).
        dtype: name of the weights' dtype.
        model_type: "kimi_linear" or "kimi_k3", the published class whose layout a checkpoint has. A
            model that uses what only K3 has becomes "kimi_k3".
        quantization: the published `quantization_config`, untouched, or None.

    Raises:
        ConfigError: a field is missing its meaning, contradicts another, or is out of range.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    kda_layers: tuple[int, ...]
    full_attn_layers: tuple[int, ...]
    num_attention_heads: int = 0
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    kv_lora_rank: int = 0
    q_lora_rank: int | None = None
    mla_use_output_gate: bool = False
    kda_num_heads: int = 0
    kda_head_dim: int = 0
    short_conv_kernel_size: int = 4
    gate_lower_bound: float | None = None
    use_full_rank_gate: bool = False
    intermediate_size: int
    hidden_act: str = "silu"
    activation_situ_beta: float | None = None
    activation_situ_linear_beta: float | None = None
    num_experts: int | None = None
    num_experts_per_token: int | None = None
    moe_intermediate_size: int | None = None
    num_shared_experts: int = 0
    first_k_dense_replace: int = 0
    moe_layer_freq: int = 1
    moe_renormalize: bool = True
    routed_scaling_factor: float = 1.0
    num_expert_group: int = 1
    topk_group: int = 1
    routed_expert_hidden_size: int | None = None
    latent_moe_use_norm: bool = False
    attn_res_block_size: int | None = None
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    max_position_embeddings: int = 1_048_576
    dtype: str = "bfloat16"
    model_type: str = "kimi_linear"
    quantization: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings"):
            check_int(name, getattr(self, name), 1)
        for name in ("kda_layers", "full_attn_layers"):
            object.__setattr__(self, name, _layer_list(name, getattr(self, name)))
        _check_partition(self)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(
                    f"{name} must be true or false, got {getattr(self, name)!r}; set one of them"
                )
        _check_mixers(self)
        _check_feed_forward(self)
        _check_rest(self)
        object.__setattr__(self, "quantization", deepcopy(self.quantization))
        if any(getattr(self, name) != unused for name, unused in _K3_ONLY.items()):
            object.__setattr__(self, "model_type", "kimi_k3")

    # -- which layer is what

    def is_global(self, layer_idx: int) -> bool:
        """Whether the layer of this 0-based index is Gated MLA."""
        return layer_idx + 1 in self.full_attn_layers

    def is_moe(self, layer_idx: int) -> bool:
        """Whether the layer of this 0-based index has a mixture of experts (spec section 2)."""
        return (
            self.num_experts is not None
            and layer_idx >= self.first_k_dense_replace
            and layer_idx % self.moe_layer_freq == 0
        )

    @property
    def num_global_layers(self) -> int:
        """Gated MLA layers."""
        return len(self.full_attn_layers)

    @property
    def num_kda_layers(self) -> int:
        """KDA layers."""
        return len(self.kda_layers)

    @property
    def num_moe_layers(self) -> int:
        """Layers with a mixture of experts."""
        return sum(self.is_moe(i) for i in range(self.num_hidden_layers))

    # -- derived widths

    @property
    def latent_dim(self) -> int:
        """R + P: numbers cached per token in a Gated MLA layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def qk_head_dim(self) -> int:
        """N + P: width of a query; scores are scaled by its inverse root."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def kda_dim(self) -> int:
        """Heads times head width of a KDA layer."""
        return self.kda_num_heads * self.kda_head_dim

    @property
    def published_class(self) -> str:
        """The published class that a checkpoint of this model is written as.

        "kimi_linear" where that class can express the model and it did not come as "kimi_k3".
        """
        return self.model_type

    # -- making one

    @staticmethod
    def layout(
        num_layers: int, ratio: int | None = 3, final_global: bool = True
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The layer lists of a regular hybrid.

        Args:
            num_layers: layers L.
            ratio: KDA layers before each global one; 0 makes every layer global, None none.
            final_global: the last layer is global too, whatever the ratio says.

        Returns:
            `(kda_layers, full_attn_layers)`, 1-based.

        Raises:
            ConfigError: a count out of range, or `ratio=None` with `final_global` left true.
        """
        check_int("num_layers", num_layers, 1)
        if ratio is None and final_global:
            raise ConfigError(
                "ratio=None means no global layer, but final_global is True; "
                "pass final_global=False with it"
            )
        if ratio is not None:
            check_int("ratio", ratio, 0)
        every = range(1, num_layers + 1)
        full = tuple(
            i
            for i in every
            if (ratio is not None and i % (ratio + 1) == 0) or (final_global and i == num_layers)
        )
        return tuple(i for i in every if i not in set(full)), full

    def replace(self, **changes: Any) -> "HybridConfig":
        """A copy with some fields changed, validated again.

        Raises:
            ConfigError: a name that is no field, or a value that does not fit the rest.
        """
        names = [f.name for f in dataclasses.fields(self)]
        unknown = sorted(set(changes) - set(names))
        if unknown:
            raise ConfigError(
                f"HybridConfig has no field {', '.join(unknown)}; its fields are {', '.join(names)}"
            )
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_dict(cls, published: Mapping[str, Any]) -> "HybridConfig":
        """The config that a published `config.json` describes (see `interlace.config.published`).

        Raises:
            ConfigError: another architecture, or a key that is unknown, missing or contradictory.
        """
        from interlace.config.published import read_published

        return read_published(published)

    def to_dict(self) -> dict[str, Any]:
        """The published form, ready for `json.dump`; a K3 model has it nested in `text_config`."""
        from interlace.config.publishing import write_published

        return write_published(self)

    @classmethod
    def from_pretrained(cls, path: str | Path) -> "HybridConfig":
        """The config of a checkpoint folder, or of a `config.json`.

        Raises:
            ConfigError: no such file, not JSON, not an object, or not a config of ours.
        """
        from interlace.config.published import read_file

        return cls.from_dict(read_file(path))


# -- checks: each message names the field, the value and what to do


def check_int(name: str, value: object, minimum: int) -> None:
    """Refuse anything but an int of at least `minimum` (True is no 1 here).

    Raises:
        ConfigError: with the name and the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(
            f"{name} must be an integer of at least {minimum}, got {value!r}; correct it"
        )


def _check_float(config: HybridConfig, name: str, low: float, high: float = math.inf) -> None:
    """Refuse all but finite numbers in the open interval; an int becomes the equal float."""
    value = getattr(config, name)
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not (low < value < high)
        or not math.isfinite(value)
    ):
        bound = f"below {high:g}" if high < math.inf else f"above {low:g}"
        raise ConfigError(f"{name} must be a finite number {bound}, got {value!r}; correct it")
    object.__setattr__(config, name, float(value))


def _layer_list(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"{name} must be a list of 1-based layer indices, got {value!r}")
    indices = tuple(value)
    for index in indices:
        if not isinstance(index, int) or isinstance(index, bool):
            raise ConfigError(
                f"{name} must hold integers, got {index!r}; write 1-based layer indices"
            )
    return indices


def _check_partition(config: HybridConfig) -> None:
    last = config.num_hidden_layers
    seen: dict[int, str] = {}
    for name in ("kda_layers", "full_attn_layers"):
        for index in getattr(config, name):
            if not 1 <= index <= last:
                raise ConfigError(
                    f"{name} names layer {index}, but layers count from 1 to {last}; "
                    "indices are 1-based"
                )
            if index in seen:
                where = "twice" if seen[index] == name else f"and {seen[index]} too"
                raise ConfigError(
                    f"{name} names layer {index} {where}; each layer belongs in one list, once"
                )
            seen[index] = name
    gaps = [i for i in range(1, last + 1) if i not in seen]
    if gaps:
        shown = ", ".join(map(str, gaps[:8])) + (", ..." if len(gaps) > 8 else "")
        raise ConfigError(
            f"kda_layers and full_attn_layers must cover layers 1 to {last}, "
            f"but layer {shown} is in neither; add it to one"
        )
    # two spellings of one layout must compare equal
    for name in ("kda_layers", "full_attn_layers"):
        object.__setattr__(config, name, tuple(sorted(getattr(config, name))))


def _check_mixers(config: HybridConfig) -> None:
    mla = 1 if config.num_global_layers else 0
    for name in ("num_attention_heads", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank"):
        check_int(name, getattr(config, name), mla)
    check_int("qk_rope_head_dim", config.qk_rope_head_dim, 0)
    if config.q_lora_rank is not None:
        check_int("q_lora_rank", config.q_lora_rank, 1)
    kda = 1 if config.num_kda_layers else 0
    for name in ("kda_num_heads", "kda_head_dim"):
        check_int(name, getattr(config, name), kda)
    check_int("short_conv_kernel_size", config.short_conv_kernel_size, 1)
    if config.gate_lower_bound is not None:
        _check_float(config, "gate_lower_bound", -math.inf, 0.0)


def _check_feed_forward(config: HybridConfig) -> None:
    if config.hidden_act not in ACTIVATIONS:
        raise ConfigError(
            f"hidden_act must be one of {', '.join(ACTIVATIONS)}, got {config.hidden_act!r}"
        )
    for name in ("activation_situ_beta", "activation_situ_linear_beta"):
        if getattr(config, name) is None:
            continue
        if config.hidden_act != "situ":
            raise ConfigError(
                f"{name} is {getattr(config, name)!r}, but hidden_act is "
                f"{config.hidden_act!r}; leave it out or set hidden_act to 'situ'"
            )
        _check_float(config, name, 0.0)
    for name, minimum in (
        ("num_shared_experts", 0),
        ("first_k_dense_replace", 0),
        ("moe_layer_freq", 1),
        ("num_expert_group", 1),
        ("topk_group", 1),
    ):
        check_int(name, getattr(config, name), minimum)
    _check_float(config, "routed_scaling_factor", 0.0)
    dense = config.num_moe_layers < config.num_hidden_layers
    check_int("intermediate_size", config.intermediate_size, 1 if dense else 0)
    if config.num_experts is None:
        _check_no_experts(config)
    else:
        _check_experts(config)


def _check_no_experts(config: HybridConfig) -> None:
    unused: dict[str, Any] = {
        "num_experts_per_token": None,
        "moe_intermediate_size": None,
        "num_shared_experts": 0,
        "first_k_dense_replace": 0,
        "routed_expert_hidden_size": None,
        "latent_moe_use_norm": False,
    }
    for name, value in unused.items():
        if getattr(config, name) != value:
            raise ConfigError(
                f"{name} is {getattr(config, name)!r}, but num_experts is not set; "
                "set num_experts or leave it out"
            )


def _check_experts(config: HybridConfig) -> None:
    for name in ("num_experts", "num_experts_per_token", "moe_intermediate_size"):
        check_int(name, getattr(config, name), 1)
    experts, visited = config.num_experts or 0, config.num_experts_per_token or 0
    if not config.num_moe_layers:
        raise ConfigError(
            f"num_experts is {experts}, but first_k_dense_replace {config.first_k_dense_replace} "
            f"and moe_layer_freq {config.moe_layer_freq} give experts to none of the "
            f"{config.num_hidden_layers} layers; lower one, or leave all expert fields out"
        )
    groups, chosen = config.num_expert_group, config.topk_group
    if experts % groups:
        raise ConfigError(f"num_expert_group must divide num_experts, got {groups} of {experts}")
    if chosen > groups:
        raise ConfigError(f"topk_group must be at most num_expert_group ({groups}), got {chosen}")
    # a group is ranked by the sum of its two best (spec section 7.2)
    if groups > 1 and experts // groups < 2:
        raise ConfigError(
            f"a group must hold at least 2 experts, got num_experts {experts} in "
            f"num_expert_group {groups}; use fewer groups"
        )
    choice = experts // groups * chosen
    if visited > choice:
        raise ConfigError(
            f"num_experts_per_token must be at most {choice}, the experts a token may choose "
            f"from, got {visited}; lower it or raise num_experts"
        )
    if config.routed_expert_hidden_size is not None:
        check_int("routed_expert_hidden_size", config.routed_expert_hidden_size, 1)
    elif config.latent_moe_use_norm:
        raise ConfigError(
            "latent_moe_use_norm is true, but routed_expert_hidden_size is not set; "
            "set both or neither"
        )


def _check_rest(config: HybridConfig) -> None:
    if config.attn_res_block_size is not None:
        check_int("attn_res_block_size", config.attn_res_block_size, 0)
    _check_float(config, "rms_norm_eps", 0.0)
    _check_float(config, "initializer_range", 0.0)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(config, name)
        if value is None:
            continue
        check_int(name, value, 0)
        if value >= config.vocab_size:
            raise ConfigError(
                f"{name} must lie below vocab_size ({config.vocab_size}), got {value}; correct one"
            )
    for name, known in (("dtype", DTYPES), ("model_type", MODEL_TYPES)):
        if getattr(config, name) not in known:
            raise ConfigError(
                f"{name} must be one of {', '.join(known)}, got {getattr(config, name)!r}"
            )
    if config.quantization is not None and not isinstance(config.quantization, Mapping):
        raise ConfigError(
            f"quantization must be a mapping or None, got {config.quantization!r}; leave it out"
        )

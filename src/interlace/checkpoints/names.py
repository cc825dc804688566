"""The table of tensors that a config implies, and the one place where foreign names end.

`tensor_table` gives every tensor of the published layout of a config: its name, shape and dtype on
disk. A name in memory is the name in the layout of Kimi Linear (`model.layers.0.self_attn.A_log`);
K3 writes `language_model.` before it and pads `A_log`. `match` lays the tensors of real files
against the table and accepts what has been met in the wild:

    on disk                                               in memory
    language_model.<name>                                 <name>
    A_log [1, 1, H, 1], [H], or K3's with zeros behind    [H]
    *_conv1d.weight [H*K, 1, W] or [H*K, W]               [H*K, 1, W]
    layers.i.block_sparse_moe.X_proj of a dense layer     layers.i.mlp.X_proj    (transformers 5.24)
    lm_head.weight of a model with tied embeddings        the embedding, which it must equal
    vision_tower.*, mm_projector.*                        skipped

Everything else is missing, unexpected or mis-shaped. Spec sections 4 to 8; traps 1, 15 and 31 of
section 9. Standard library only.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from interlace.config import HybridConfig
from interlace.config.sizes import MXFP4_GROUP, a_log_length, expert_width, packs_experts

__all__ = [
    "EMBEDDING",
    "HEAD",
    "K3_PREFIX",
    "PACKED",
    "SCALE",
    "STORED_DTYPES",
    "VISION_PREFIXES",
    "Match",
    "Misshaped",
    "Stored",
    "TensorSpec",
    "match",
    "tensor_table",
]

K3_PREFIX = "language_model."
VISION_PREFIXES = ("vision_tower.", "mm_projector.")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
PACKED = ".weight_packed"
SCALE = ".weight_scale"
"""With `PACKED`: how the two tensors of an MXFP4 matrix end, where a plain one is `.weight`."""

STORED_DTYPES: dict[str, str] = {
    "float64": "F64",
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
}
"""Name of a dtype in a file's header, by its name in a config."""

_MISNAMED = re.compile(r"(model\.layers\.\d+\.)block_sparse_moe\.((?:gate|up|down)_proj\.weight)")


class TensorSpec(NamedTuple):
    """One tensor of the published layout.

    Args:
        shape: on disk.
        dtype: on disk, as a header names it.
        memory: its name in memory, which is the name in a state dict.
    """

    shape: tuple[int, ...]
    dtype: str
    memory: str


@runtime_checkable
class Stored(Protocol):
    """What `match` asks of a tensor in a file."""

    @property
    def dtype(self) -> str:
        """As the header names it."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """As stored."""
        ...


class Misshaped(NamedTuple):
    """A tensor of the right name and the wrong shape."""

    name: str
    shape: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(slots=True)
class Match:
    """The tensors of a checkpoint beside those that its config implies.

    Args:
        sources: name on disk of each tensor, by its name in memory.
        missing: names that the config implies and no file has, as the layout writes them.
        unexpected: names that the config does not imply, or implies once and files have twice.
        misshaped: tensors with another shape than the config implies.
        skipped: tensors of the vision tower, which is no part of the text model.
        retyped: tensors whose dtype is not that of the layout, with both dtypes; legal, since a
            checkpoint may be stored in any floating dtype.
        tied_head: name on disk of a head that tied embeddings make redundant, or None.
    """

    sources: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshaped: list[Misshaped] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    retyped: list[tuple[str, str, str]] = field(default_factory=list)
    tied_head: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the files hold the model, the whole model and nothing but the model."""
        return not (self.missing or self.unexpected or self.misshaped)


def tensor_table(config: HybridConfig) -> dict[str, TensorSpec]:
    """Every tensor of the published layout of `config` by its name on disk, in the model's order.

    Kimi Linear stores `A_log` and `dt_bias` in float32 and the rest in the config's dtype; K3 also
    its convolutions, `o_norm` and correction bias. None is stored narrower than the config's dtype.
    """
    k3 = config.published_class == "kimi_k3"
    prefix = K3_PREFIX if k3 else ""
    plain = STORED_DTYPES[config.dtype]
    wide = "F64" if plain == "F64" else "F32"
    dtypes = {"plain": plain, "wide": wide, "k3_wide": wide if k3 else plain, "byte": "U8"}
    return {
        prefix + name: TensorSpec(shape, dtypes[kind], name)
        for name, shape, kind in _tensors(config)
    }


_Row = tuple[str, tuple[int, ...], str]


def _tensors(config: HybridConfig) -> Iterator[_Row]:
    """Name in memory, shape on disk and kind of dtype of every tensor."""
    hidden = config.hidden_size
    yield EMBEDDING, (config.vocab_size, hidden), "plain"
    for i in range(config.num_hidden_layers):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,), "plain"
        yield from (_mla if config.is_global(i) else _kda)(config, layer + "self_attn.")
        if config.attn_res_block_size is not None:
            for part in ("self_attention_res", "mlp_res"):
                yield from _residual(config, layer + part)
        yield layer + "post_attention_layernorm.weight", (hidden,), "plain"
        if config.is_moe(i):
            yield from _moe(config, layer + "block_sparse_moe.")
        else:
            yield from _mlp(layer + "mlp.", hidden, config.intermediate_size)
    if config.attn_res_block_size is not None:
        yield from _residual(config, "model.output_attn_res")
    yield "model.norm.weight", (hidden,), "plain"
    if not config.tie_word_embeddings:
        yield HEAD, (config.vocab_size, hidden), "plain"


def _mla(config: HybridConfig, prefix: str) -> Iterator[_Row]:
    """Spec section 4."""
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    query, value = heads * config.qk_head_dim, heads * config.v_head_dim
    if config.q_lora_rank is None:
        yield prefix + "q_proj.weight", (query, hidden), "plain"
    else:
        yield prefix + "q_a_proj.weight", (config.q_lora_rank, hidden), "plain"
        yield prefix + "q_a_layernorm.weight", (config.q_lora_rank,), "plain"
        yield prefix + "q_b_proj.weight", (query, config.q_lora_rank), "plain"
    yield prefix + "kv_a_proj_with_mqa.weight", (config.latent_dim, hidden), "plain"
    yield prefix + "kv_a_layernorm.weight", (rank,), "plain"
    expanded = heads * (config.qk_nope_head_dim + config.v_head_dim)
    yield prefix + "kv_b_proj.weight", (expanded, rank), "plain"
    if config.mla_use_output_gate:
        yield prefix + "g_proj.weight", (value, hidden), "plain"
    yield prefix + "o_proj.weight", (hidden, value), "plain"


def _kda(config: HybridConfig, prefix: str) -> Iterator[_Row]:
    """Spec section 5."""
    hidden, heads, width = config.hidden_size, config.kda_num_heads, config.kda_head_dim
    channels = config.kda_dim
    for letter in "qkv":
        yield f"{prefix}{letter}_proj.weight", (channels, hidden), "plain"
    for letter in "qkv":
        taps = (channels, 1, config.short_conv_kernel_size)
        yield f"{prefix}{letter}_conv1d.weight", taps, "k3_wide"
    yield prefix + "f_a_proj.weight", (width, hidden), "plain"
    yield prefix + "f_b_proj.weight", (channels, width), "plain"
    yield prefix + "b_proj.weight", (heads, hidden), "plain"
    k3 = config.published_class == "kimi_k3"
    yield prefix + "A_log", (a_log_length(config),) if k3 else (1, 1, heads, 1), "wide"
    yield prefix + "dt_bias", (channels,), "wide"
    if config.use_full_rank_gate:
        yield prefix + "g_proj.weight", (channels, hidden), "plain"
    else:
        yield prefix + "g_a_proj.weight", (width, hidden), "plain"
        yield prefix + "g_b_proj.weight", (channels, width), "plain"
    yield prefix + "o_norm.weight", (width,), "k3_wide"
    yield prefix + "o_proj.weight", (hidden, channels), "plain"


def _residual(config: HybridConfig, prefix: str) -> Iterator[_Row]:
    """Spec section 6."""
    yield prefix + "_norm.weight", (config.hidden_size,), "plain"
    yield prefix + "_proj.weight", (1, config.hidden_size), "plain"


def _mlp(prefix: str, hidden: int, width: int) -> Iterator[_Row]:
    yield prefix + "gate_proj.weight", (width, hidden), "plain"
    yield prefix + "up_proj.weight", (width, hidden), "plain"
    yield prefix + "down_proj.weight", (hidden, width), "plain"


def _moe(config: HybridConfig, prefix: str) -> Iterator[_Row]:
    """Spec sections 7.3 and 7.4."""
    hidden, experts = config.hidden_size, config.num_experts or 0
    inner, width = expert_width(config), config.moe_intermediate_size or 0
    yield prefix + "gate.weight", (experts, hidden), "plain"
    yield prefix + "gate.e_score_correction_bias", (experts,), "k3_wide"
    packed = packs_experts(config)
    matrices = (("w1", (width, inner)), ("w2", (inner, width)), ("w3", (width, inner)))
    for expert in range(experts):
        for name, (rows, columns) in matrices:
            matrix = f"{prefix}experts.{expert}.{name}"
            if packed:
                # two codes a byte, and one scale byte per group of a row
                yield matrix + PACKED, (rows, columns // 2), "byte"
                yield matrix + SCALE, (rows, columns // MXFP4_GROUP), "byte"
            else:
                yield matrix + ".weight", (rows, columns), "plain"
    if config.num_shared_experts:
        yield from _mlp(prefix + "shared_experts.", hidden, width * config.num_shared_experts)
    if config.routed_expert_hidden_size is not None:
        yield prefix + "routed_expert_down_proj.weight", (inner, hidden), "plain"
        if config.latent_moe_use_norm:
            yield prefix + "routed_expert_norm.weight", (inner,), "plain"
        yield prefix + "routed_expert_up_proj.weight", (hidden, inner), "plain"


# -- real files


def match(config: HybridConfig, found: Mapping[str, Stored]) -> Match:
    """Lay the tensors of a checkpoint against those that `config` implies.

    Args:
        config: the model.
        found: what the files hold, by name on disk.
    """
    written = tensor_table(config)
    specs = {spec.memory: spec for spec in written.values()}
    result = Match()
    for name, tensor in found.items():
        if name.startswith(VISION_PREFIXES):
            result.skipped.append(name)
            continue
        memory = _memory_name(name, specs)
        if config.tie_word_embeddings and memory == HEAD and result.tied_head is None:
            result.tied_head = name
            spec = specs[EMBEDDING]
        elif memory not in specs or memory in result.sources:
            result.unexpected.append(name)
            continue
        else:
            spec = specs[memory]
            result.sources[memory] = name
        others = _other_shapes(config, spec)
        if tensor.shape != spec.shape and tensor.shape not in others:
            result.misshaped.append(Misshaped(name, tensor.shape, spec.shape))
        if tensor.dtype != spec.dtype:
            result.retyped.append((name, tensor.dtype, spec.dtype))
    result.missing = [name for name, spec in written.items() if spec.memory not in result.sources]
    return result


def _memory_name(name: str, specs: Mapping[str, TensorSpec]) -> str:
    memory = name.removeprefix(K3_PREFIX)
    if memory not in specs:
        misnamed = _MISNAMED.fullmatch(memory)
        if misnamed:
            return f"{misnamed[1]}mlp.{misnamed[2]}"
    return memory


def _other_shapes(config: HybridConfig, spec: TensorSpec) -> tuple[tuple[int, ...], ...]:
    """Further shapes on disk that mean the same tensor."""
    if spec.memory.endswith("_conv1d.weight"):
        return ((spec.shape[0], spec.shape[2]),)
    if spec.memory.endswith(".A_log"):
        return (config.kda_num_heads,), (1, 1, config.kda_num_heads, 1)
    return ()

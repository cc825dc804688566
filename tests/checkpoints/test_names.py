"""The table of names against the published models to the last tensor; what may differ from it."""

import re
from collections import Counter
from math import prod
from typing import NamedTuple

import pytest

from interlace.checkpoints.headers import DTYPE_BYTES
from interlace.checkpoints.names import Match, Misshaped, TensorSpec, match, tensor_table
from interlace.config import HybridConfig, preset
from interlace.config.sizes import checkpoint_bytes, stored_parameters

# name behind "layers.i." -> shape and dtype on disk, copied from the spec's tables by hand
KIMI_LINEAR = {
    "self_attn.q_proj.weight": ([4096, 2304], "BF16"),
    "self_attn.v_conv1d.weight": ([4096, 1, 4], "BF16"),
    "self_attn.f_a_proj.weight": ([128, 2304], "BF16"),
    "self_attn.f_b_proj.weight": ([4096, 128], "BF16"),
    "self_attn.b_proj.weight": ([32, 2304], "BF16"),
    "self_attn.A_log": ([1, 1, 32, 1], "F32"),
    "self_attn.dt_bias": ([4096], "F32"),
    "self_attn.g_a_proj.weight": ([128, 2304], "BF16"),
    "self_attn.g_b_proj.weight": ([4096, 128], "BF16"),
    "self_attn.o_norm.weight": ([128], "BF16"),
    "self_attn.o_proj.weight": ([2304, 4096], "BF16"),
    "block_sparse_moe.gate.weight": ([256, 2304], "BF16"),
    "block_sparse_moe.gate.e_score_correction_bias": ([256], "BF16"),
    "block_sparse_moe.experts.255.w1.weight": ([1024, 2304], "BF16"),
    "block_sparse_moe.experts.255.w2.weight": ([2304, 1024], "BF16"),
    "block_sparse_moe.shared_experts.down_proj.weight": ([2304, 1024], "BF16"),
}
KIMI_LINEAR_MLA = {
    "self_attn.q_proj.weight": ([6144, 2304], "BF16"),
    "self_attn.kv_a_proj_with_mqa.weight": ([576, 2304], "BF16"),
    "self_attn.kv_a_layernorm.weight": ([512], "BF16"),
    "self_attn.kv_b_proj.weight": ([8192, 512], "BF16"),
    "self_attn.o_proj.weight": ([2304, 4096], "BF16"),
}
K3 = {
    "self_attn.k_proj.weight": ([12288, 7168], "BF16"),
    "self_attn.k_conv1d.weight": ([12288, 1, 4], "F32"),
    "self_attn.A_log": ([128], "F32"),
    "self_attn.dt_bias": ([12288], "F32"),
    "self_attn.g_proj.weight": ([12288, 7168], "BF16"),
    "self_attn.o_norm.weight": ([128], "F32"),
    "self_attention_res_norm.weight": ([7168], "BF16"),
    "self_attention_res_proj.weight": ([1, 7168], "BF16"),
    "mlp_res_proj.weight": ([1, 7168], "BF16"),
    "block_sparse_moe.gate.weight": ([896, 7168], "BF16"),
    "block_sparse_moe.gate.e_score_correction_bias": ([896], "F32"),
    "block_sparse_moe.experts.895.w3.weight_packed": ([3072, 1792], "U8"),
    "block_sparse_moe.experts.895.w3.weight_scale": ([3072, 112], "U8"),
    "block_sparse_moe.experts.0.w2.weight_packed": ([3584, 1536], "U8"),
    "block_sparse_moe.experts.0.w2.weight_scale": ([3584, 96], "U8"),
    "block_sparse_moe.shared_experts.up_proj.weight": ([6144, 7168], "BF16"),
    "block_sparse_moe.routed_expert_down_proj.weight": ([3584, 7168], "BF16"),
    "block_sparse_moe.routed_expert_norm.weight": ([3584], "BF16"),
    "block_sparse_moe.routed_expert_up_proj.weight": ([7168, 3584], "BF16"),
}
K3_MLA = {
    "self_attn.q_a_proj.weight": ([1536, 7168], "BF16"),
    "self_attn.q_a_layernorm.weight": ([1536], "BF16"),
    "self_attn.q_b_proj.weight": ([18432, 1536], "BF16"),
    "self_attn.kv_b_proj.weight": ([24576, 512], "BF16"),
    "self_attn.g_proj.weight": ([12288, 7168], "BF16"),
}


class Found(NamedTuple):
    """A tensor in a file, as far as `match` asks."""

    dtype: str
    shape: tuple[int, ...]


def tiny(**changes) -> HybridConfig:
    return preset("kimi-linear-tiny").replace(**changes)


def k3_style(**changes) -> HybridConfig:
    return tiny(gate_lower_bound=-5.0, use_full_rank_gate=True, mla_use_output_gate=True, **changes)


def stored(config: HybridConfig) -> dict[str, Found]:
    return {name: Found(spec.dtype, spec.shape) for name, spec in tensor_table(config).items()}


def renamed(config: HybridConfig, old: str, new: str) -> dict[str, Found]:
    return {name.replace(old, new): tensor for name, tensor in stored(config).items()}


def check_rows(table: dict[str, TensorSpec], prefix: str, rows: dict) -> None:
    for name, (shape, dtype) in rows.items():
        spec = table[prefix + name]
        assert (list(spec.shape), spec.dtype) == (shape, dtype), name
        assert spec.memory == (prefix + name).removeprefix("language_model.")


def test_kimi_linear_48b_to_the_last_tensor():
    table = tensor_table(preset("kimi-linear-48b"))
    assert len(table) == 20_493
    assert sum(prod(spec.shape) for spec in table.values()) == 49_122_681_728
    check_rows(table, "model.layers.24.", KIMI_LINEAR)
    check_rows(table, "model.layers.26.", KIMI_LINEAR_MLA)
    assert table["model.layers.0.mlp.down_proj.weight"].shape == (2304, 9216)
    assert table["lm_head.weight"].shape == (163_840, 2304)
    assert not any("layers.0.block_sparse_moe" in name for name in table)


def test_kimi_k3_to_the_last_tensor():
    table = tensor_table(preset("kimi-k3"))
    assert len(table) == 497_052
    assert sum(name.startswith("language_model.model.") for name in table) == 497_051
    check_rows(table, "language_model.model.layers.12.", K3)
    check_rows(table, "language_model.model.layers.92.", K3_MLA)
    kinds = Counter(name.rsplit(".", 2)[-2] for name in table if name.endswith("res_norm.weight"))
    assert sum(kinds.values()) == 187
    assert table["language_model.model.output_attn_res_proj.weight"].shape == (1, 7168)
    packed = sum(name.endswith("weight_packed") for name in table)
    assert packed == sum(name.endswith("weight_scale") for name in table) == 247_296


@pytest.mark.parametrize(
    "name", ["default", "kimi-linear-tiny", "mid-mla", "kl2", "kimi-linear-48b"]
)
def test_table_and_formula_agree(name):
    config = preset(name)
    table = tensor_table(config)
    assert sum(prod(spec.shape) for spec in table.values()) == stored_parameters(config)
    size = sum(prod(spec.shape) * DTYPE_BYTES[spec.dtype] for spec in table.values())
    assert size == checkpoint_bytes(config)


def test_default_is_in_the_form_of_k3():
    table = tensor_table(preset("default"))
    prefix = "language_model.model.layers.0.self_attn."
    assert table[prefix + "A_log"].shape == (64,)  # the head size, which is larger than 2 heads
    assert table[prefix + "q_conv1d.weight"].dtype == "F32"
    many = preset("default").replace(kda_num_heads=40, kda_head_dim=8)
    assert tensor_table(many)[prefix + "A_log"].shape == (40,)


@pytest.mark.parametrize("config", [tiny(), k3_style()], ids=["kimi_linear", "kimi_k3"])
def test_own_layout_is_complete(config):
    found = match(config, stored(config))
    assert found.complete
    assert not found.retyped
    assert set(found.sources) == {spec.memory for spec in tensor_table(config).values()}


def test_b61_either_prefix_is_read_and_vision_skipped():
    for config, old, new in (
        (tiny(), "", ""),
        (tiny(), "model.layers", "language_model.model.layers"),
        (k3_style(), "language_model.", ""),
    ):
        tensors = renamed(config, old, new) if old else stored(config)
        vision = {
            "vision_tower.a.weight": Found("BF16", (3,)),
            "mm_projector.b": Found("F32", (1,)),
        }
        found = match(config, {**tensors, **vision})
        assert found.complete
        assert found.skipped == list(vision)


def test_b61_unknown_text_names_are_unexpected():
    extra = {
        "language_model.model.layers.9.self_attn.q_proj.weight": Found("F32", (64, 64)),
        "audio_tower.weight": Found("F32", (1,)),
        "model.layers.1.block_sparse_moe.gate_proj.weight": Found("F32", (96, 64)),
    }
    found = match(tiny(), {**stored(tiny()), **extra})
    assert found.unexpected == list(extra)
    assert not found.missing


def test_a_tensor_under_both_prefixes_is_one_too_many():
    twice = {"language_model.lm_head.weight": Found("F32", (256, 64))}
    assert match(tiny(), {**stored(tiny()), **twice}).unexpected == list(twice)


def test_misnamed_dense_layer_of_transformers_is_read():
    tensors = renamed(tiny(), "layers.0.mlp.", "layers.0.block_sparse_moe.")
    found = match(tiny(), tensors)
    assert found.complete
    name = "model.layers.0.block_sparse_moe.up_proj.weight"
    assert found.sources["model.layers.0.mlp.up_proj.weight"] == name


CONV = "model.layers.0.self_attn.k_conv1d.weight"
A_LOG = "self_attn.A_log"


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((64, 1, 4), True), ((64, 4), True), ((64, 4, 1), False), ((4, 64), False), ((256,), False)],
    ids=str,
)
def test_b53_convolution_shapes(shape, fits):
    found = match(tiny(), {**stored(tiny()), CONV: Found("F32", shape)})
    assert found.misshaped == ([] if fits else [Misshaped(CONV, shape, (64, 1, 4))])


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4, 1), (16,), (5,), (4, 1)], ids=str)
@pytest.mark.parametrize("config", [tiny(), k3_style()], ids=["kimi_linear", "kimi_k3"])
def test_decay_is_one_number_per_head_and_padded_only_in_k3(config, shape):
    name = next(name for name in tensor_table(config) if name.endswith(A_LOG))
    found = match(config, {**stored(config), name: Found("F32", shape)})
    allowed = [(4,), (1, 1, 4, 1)]
    if config.published_class == "kimi_k3":
        allowed.append((16,))
    assert bool(found.misshaped) == (shape not in allowed)


def test_missing_tensors_are_named_as_on_disk():
    config = k3_style()
    tensors = stored(config)
    gone = [name for name in tensors if name.endswith("layers.3.self_attn.g_proj.weight")]
    assert len(gone) == 1
    del tensors[gone[0]]
    assert match(config, tensors).missing == gone


def test_b32_output_gate_without_its_flag_is_unexpected():
    config = tiny()
    gate = "model.layers.3.self_attn.g_proj.weight"
    found = match(config, {**stored(config), gate: Found("F32", (64, 64))})
    assert found.unexpected == [gate]


@pytest.mark.parametrize("rank", [None, 24])
def test_b28_names_follow_q_lora_rank(rank):
    layer = "model.layers.3.self_attn."
    names = {re.sub("^" + layer, "", name) for name in tensor_table(tiny(q_lora_rank=rank))}
    low_rank = {"q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight"}
    assert low_rank <= names if rank else "q_proj.weight" in names and not low_rank & names


def test_other_dtypes_are_told_and_no_error():
    tensors = stored(tiny())
    tensors[CONV] = Found("BF16", (64, 1, 4))
    found = match(tiny(), tensors)
    assert found.complete
    assert found.retyped == [(CONV, "BF16", "F32")]


def test_b58_tied_models_have_no_head_and_accept_one():
    tied = tiny(tie_word_embeddings=True)
    assert "lm_head.weight" not in tensor_table(tied)
    assert match(tied, stored(tied)).complete
    both = match(tied, stored(tiny()))
    assert both.complete
    assert both.tied_head == "lm_head.weight"
    assert match(tiny(), stored(tied)).missing == ["lm_head.weight"]


def test_an_empty_match_is_complete():
    assert Match().complete

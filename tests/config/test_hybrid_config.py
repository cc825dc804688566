"""What a HybridConfig accepts, what it refuses and how it says so."""

import copy
import pickle

import pytest

from interlace.config import HybridConfig, preset
from interlace.errors import ConfigError

ODD = HybridConfig(
    vocab_size=211,
    hidden_size=40,
    num_hidden_layers=5,
    kda_layers=(1, 2, 4),
    full_attn_layers=(3, 5),
    num_attention_heads=3,
    qk_nope_head_dim=10,
    qk_rope_head_dim=6,
    v_head_dim=14,
    kv_lora_rank=22,
    kda_num_heads=5,
    kda_head_dim=18,
    short_conv_kernel_size=3,
    intermediate_size=70,
    num_experts=6,
    num_experts_per_token=2,
    moe_intermediate_size=26,
    num_shared_experts=2,
    first_k_dense_replace=1,
    routed_scaling_factor=1.5,
)


def test_derived_sizes_and_layer_kinds():
    assert [ODD.is_global(i) for i in range(5)] == [False, False, True, False, True]
    assert [ODD.is_moe(i) for i in range(5)] == [False, True, True, True, True]
    assert (ODD.num_global_layers, ODD.num_kda_layers, ODD.num_moe_layers) == (2, 3, 4)
    assert (ODD.latent_dim, ODD.qk_head_dim, ODD.kda_dim) == (28, 16, 90)
    freq = ODD.replace(moe_layer_freq=2)
    assert [freq.is_moe(i) for i in range(5)] == [False, False, True, False, True]


def test_b63_layer_lists_must_partition_the_layers():
    def refused(match, kda=(1, 2, 4), full=(3, 5)):
        with pytest.raises(ConfigError, match=match):
            ODD.replace(kda_layers=kda, full_attn_layers=full)

    refused("kda_layers names layer 0, but layers count from 1 to 5", kda=(0, 1, 2, 4))
    refused("full_attn_layers names layer -1", full=(3, 5, -1))
    refused("kda_layers names layer 6", kda=(1, 2, 4, 6))
    refused("kda_layers names layer 2 twice", kda=(1, 2, 2, 4))
    refused("full_attn_layers names layer 4 and kda_layers too", full=(3, 4, 5))
    refused("layer 3 is in neither", full=(5,))
    refused("kda_layers must hold integers, got '2'", kda=(1, "2", 4))
    refused("kda_layers must hold integers, got True", kda=(True, 2, 4))
    refused("kda_layers must hold integers, got 4.0", kda=(1, 2, 4.0))
    refused("kda_layers must be a list of 1-based layer indices, got '124'", kda="124")
    refused("full_attn_layers must be a list of 1-based layer indices, got 3", full=3)


def test_layer_lists_are_one_layout_in_any_order_and_type():
    assert ODD.replace(kda_layers=[4, 1, 2], full_attn_layers=[5, 3]) == ODD


def test_layout_gives_the_published_lists():
    kda, full = HybridConfig.layout(27)
    assert full == (4, 8, 12, 16, 20, 24, 27)
    assert set(kda) | set(full) == set(range(1, 28))
    assert len(kda) == 20
    kda, full = HybridConfig.layout(93)
    assert full == (*range(4, 93, 4), 93)
    assert len(kda) == 69


@pytest.mark.parametrize(
    ("arguments", "full"),
    [
        ((13,), (4, 8, 12, 13)),
        ((8,), (4, 8)),
        ((5, 0), (1, 2, 3, 4, 5)),
        ((5, 0, False), (1, 2, 3, 4, 5)),
        ((5, None, False), ()),
        ((5, 1), (2, 4, 5)),
        ((5, 1, False), (2, 4)),
        ((2, 7, False), ()),
        ((1,), (1,)),
    ],
)
def test_layout_of_any_ratio(arguments, full):
    kda, found = HybridConfig.layout(*arguments)
    assert found == full
    assert sorted(kda + found) == list(range(1, arguments[0] + 1))


@pytest.mark.parametrize(
    "arguments", [(5, None), (0,), (-3,), (5, -1), (5, 2.5), (True,), (5, True), ("5",)]
)
def test_layout_refuses(arguments):
    with pytest.raises(ConfigError):
        HybridConfig.layout(*arguments)


SIZES = """
    vocab_size hidden_size num_hidden_layers num_attention_heads qk_nope_head_dim v_head_dim
    kv_lora_rank q_lora_rank kda_num_heads kda_head_dim short_conv_kernel_size intermediate_size
    num_experts num_experts_per_token moe_intermediate_size moe_layer_freq num_expert_group
    topk_group routed_expert_hidden_size max_position_embeddings
""".split()  # noqa: SIM905


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", [0, -2, True, "8", 2.0])
def test_sizes_are_positive_integers(name, value):
    with pytest.raises(ConfigError, match=f"{name} must be an integer of at least 1, got"):
        ODD.replace(**{name: value})


@pytest.mark.parametrize(
    "name",
    ["qk_rope_head_dim", "num_shared_experts", "first_k_dense_replace", "attn_res_block_size"],
)
@pytest.mark.parametrize("value", [-1, False, "2"])
def test_counts_may_be_zero_but_no_less(name, value):
    with pytest.raises(ConfigError, match=name):
        ODD.replace(**{name: value})


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_experts_per_token": 7}, "num_experts_per_token must be at most 6"),
        ({"num_expert_group": 4}, "num_expert_group must divide num_experts, got 4 of 6"),
        ({"num_expert_group": 3, "topk_group": 4}, "topk_group must be at most"),
        ({"num_expert_group": 6, "topk_group": 2}, "a group must hold at least 2 experts"),
        (
            {"num_expert_group": 3, "topk_group": 1, "num_experts_per_token": 3},
            "num_experts_per_token must be at most 2",
        ),
        ({"num_experts": None}, "num_experts_per_token is 2, but num_experts is not set"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size must be an integer"),
        ({"first_k_dense_replace": 5}, "give experts to none of the 5 layers"),
        ({"latent_moe_use_norm": True}, "routed_expert_hidden_size is not set"),
        ({"activation_situ_beta": 4.0}, "activation_situ_beta is 4.0, but hidden_act is 'silu'"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor must be a finite number above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a finite number"),
        ({"initializer_range": float("inf")}, "initializer_range must be a finite number"),
        ({"eos_token_id": 211}, r"eos_token_id must lie below vocab_size \(211\), got 211"),
        ({"bos_token_id": -1}, "bos_token_id"),
        ({"dtype": "int3"}, "dtype must be one of bfloat16, .*, got 'int3'"),
        ({"model_type": "llama"}, "model_type must be one of kimi_linear, kimi_k3, got 'llama'"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
        ({"quantization": "mxfp4"}, "quantization must be a mapping"),
        ({"hidden": 3}, "HybridConfig has no field hidden"),
    ],
)
def test_contradictions_are_named(changes, match):
    with pytest.raises(ConfigError, match=match):
        ODD.replace(**changes)


def test_b71_unknown_activation_and_a_bound_that_is_none():
    for bound in (0, 0.0, 5.0, float("-inf"), float("nan"), True, "-5"):
        with pytest.raises(ConfigError, match="gate_lower_bound must be a finite number below 0"):
            ODD.replace(gate_lower_bound=bound)
    for name in ("gelu", "swish", "", None):
        with pytest.raises(ConfigError, match="hidden_act must be one of silu, situ"):
            ODD.replace(hidden_act=name)


def test_sizes_of_absent_mixers_may_be_left_out():
    kda, full = HybridConfig.layout(2, None, final_global=False)
    only_kda = HybridConfig(
        vocab_size=9,
        hidden_size=8,
        num_hidden_layers=2,
        kda_layers=kda,
        full_attn_layers=full,
        kda_num_heads=2,
        kda_head_dim=4,
        intermediate_size=8,
    )
    assert only_kda.num_global_layers == only_kda.latent_dim == 0
    kda, full = HybridConfig.layout(5, 0)
    only_mla = ODD.replace(kda_layers=kda, full_attn_layers=full, kda_num_heads=0, kda_head_dim=0)
    assert only_mla.kda_dim == 0


def test_published_class_is_what_can_hold_the_model():
    assert ODD.published_class == "kimi_linear"
    assert ODD.replace(q_lora_rank=24).published_class == "kimi_linear"
    for changes in (
        {"mla_use_output_gate": True},
        {"gate_lower_bound": -5},
        {"use_full_rank_gate": True},
        {"hidden_act": "situ"},
        {"routed_expert_hidden_size": 20},
        {"attn_res_block_size": 2},
    ):
        assert ODD.replace(**changes).published_class == "kimi_k3"
    # a checkpoint that came in K3's layout keeps it
    assert ODD.replace(model_type="kimi_k3").published_class == "kimi_k3"
    assert preset("default").published_class == "kimi_k3"


def test_configs_are_values():
    assert ODD == copy.deepcopy(ODD) == pickle.loads(pickle.dumps(ODD))
    assert len({ODD, ODD.replace(), ODD.replace(hidden_size=48)}) == 2
    assert {preset("kimi-k3"): 1}[preset("kimi-k3")] == 1
    with pytest.raises(AttributeError):
        ODD.hidden_size = 3
    with pytest.raises(TypeError, match="unexpected keyword"):
        HybridConfig(hidden=3)
    given = {"format": {"bits": 4}}
    held = ODD.replace(quantization=given)
    given["format"]["bits"] = 8
    assert held.quantization == {"format": {"bits": 4}}

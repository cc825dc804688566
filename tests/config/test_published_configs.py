"""The published config.json files and those of transformers, read and written."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.config import HybridConfig, preset
from interlace.config.sizes import latent_bytes_per_token, layer_parameters, stored_parameters
from interlace.errors import ConfigError

# both files field by field, as the spec gives them (sections 1.1 and 1.2)
KIMI_LINEAR = json.loads("""{
 "architectures": ["KimiLinearForCausalLM"],
 "auto_map": {"AutoConfig": "configuration_kimi.KimiLinearConfig"},
 "bos_token_id": 163584, "dtype": "bfloat16", "eos_token_id": 163586, "first_k_dense_replace": 1,
 "head_dim": 72, "hidden_act": "silu", "hidden_size": 2304, "initializer_range": 0.02,
 "intermediate_size": 9216, "kv_lora_rank": 512,
 "linear_attn_config": {
   "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128,
   "kda_layers": [1,2,3,5,6,7,9,10,11,13,14,15,17,18,19,21,22,23,25,26],
   "num_heads": 32, "short_conv_kernel_size": 4},
 "mla_use_nope": true, "model_max_length": 1048576, "model_type": "kimi_linear",
 "moe_intermediate_size": 1024, "moe_layer_freq": 1, "moe_renormalize": true,
 "moe_router_activation_func": "sigmoid", "num_attention_heads": 32, "num_expert_group": 1,
 "num_experts": 256, "num_experts_per_token": 8, "num_hidden_layers": 27,
 "num_key_value_heads": 32, "num_nextn_predict_layers": 0, "num_shared_experts": 1,
 "pad_token_id": 163839, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
 "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
 "routed_scaling_factor": 2.446, "tie_word_embeddings": false, "topk_group": 1,
 "transformers_version": "4.57.1", "use_cache": true, "use_grouped_topk": true,
 "v_head_dim": 128, "vocab_size": 163840}""")

K3 = json.loads("""{
 "architectures": ["KimiK3ForConditionalGeneration"],
 "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiK3Config"},
 "bos_token_id": 163584, "dtype": "bfloat16", "eos_token_id": 163586, "ignore_index": -100,
 "image_placeholder": "<|kimi_image_placeholder|>", "media_placeholder_token_id": 163605,
 "model_type": "kimi_k3", "pad_token_id": 163839, "tie_word_embeddings": false,
 "text_config": {
  "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
  "auto_map": {"AutoConfig": "configuration_kimi_k3.KimiLinearConfig"},
  "activation_situ_beta": 4.0, "activation_situ_linear_beta": 25.0, "attn_res_block_size": 12,
  "bos_token_id": 163584, "eos_token_id": 163586, "pad_token_id": 163839, "dtype": "bfloat16",
  "first_k_dense_replace": 1, "hidden_act": "situ", "hidden_size": 7168,
  "initializer_range": 0.02, "intermediate_size": 33792, "kv_lora_rank": 512,
  "latent_moe_use_norm": true,
  "linear_attn_config": {
    "full_attn_layers": [4,8,12,16,20,24,28,32,36,40,44,48,52,56,60,64,68,72,76,80,84,88,92,93],
    "gate_lower_bound": -5.0, "head_dim": 128, "num_heads": 96, "short_conv_kernel_size": 4,
    "use_full_rank_gate": true},
  "max_position_embeddings": 1048576, "mla_use_nope": true, "mla_use_output_gate": true,
  "moe_intermediate_size": 3072, "moe_layer_freq": 1, "moe_renormalize": true,
  "moe_router_activation_func": "sigmoid", "num_attention_heads": 96, "num_expert_group": 1,
  "num_experts": 896, "num_experts_per_token": 16, "num_hidden_layers": 93,
  "num_key_value_heads": 96, "num_nextn_predict_layers": 0, "num_shared_experts": 2,
  "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-05,
  "routed_expert_hidden_size": 3584, "routed_scaling_factor": 1.0, "tie_word_embeddings": false,
  "topk_group": 1, "topk_method": "noaux_tc", "transformers_version": "4.56.2",
  "use_cache": true, "use_grouped_topk": true, "v_head_dim": 128, "vocab_size": 163840,
  "_name_or_path": "", "max_length": 20, "top_k": 50, "id2label": {"0": "LABEL_0"},
  "pruned_heads": {}, "torchscript": false, "use_bfloat16": false, "bad_words_ids": null},
 "vision_config": {"patch_size": 14, "vt_num_hidden_layers": 27}}""")
K3["text_config"]["linear_attn_config"]["kda_layers"] = [i for i in range(1, 93) if i % 4]
K3["text_config"]["quantization_config"] = dict(preset("kimi-k3").quantization)

TINY = preset("kimi-linear-tiny")


def edited(base=None, **changes):
    """A copy of a published dictionary; `...` removes a key, a dict merges one level."""
    out = json.loads(json.dumps(KIMI_LINEAR if base is None else base))
    for key, value in changes.items():
        if value is ...:
            del out[key]
        elif isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = edited(out[key], **value)
        else:
            out[key] = value
    return out


def k3(**changes):
    return edited(K3, text_config=changes)


def read(*args, **changes):
    return HybridConfig.from_dict(edited(*args, **changes))


def refused(published, match):
    with pytest.raises(ConfigError, match=match):
        HybridConfig.from_dict(published)


def test_published_files_are_the_presets():
    assert HybridConfig.from_dict(KIMI_LINEAR) == preset("kimi-linear-48b")
    assert HybridConfig.from_dict(K3) == preset("kimi-k3")


def test_what_is_written_is_what_was_published():
    ours = preset("kimi-linear-48b").to_dict()
    assert ours == edited(auto_map=..., transformers_version=...)
    text = k3(auto_map=..., transformers_version=...)["text_config"]
    for key in ("_name_or_path", "max_length", "top_k", "id2label", "pruned_heads", "torchscript"):
        del text[key]
    del text["use_bfloat16"], text["bad_words_ids"]
    ours = preset("kimi-k3").to_dict()
    assert ours.pop("text_config") == text
    assert ours == {key: K3[key] for key in ours}
    assert json.loads(json.dumps(preset("default").to_dict())) == preset("default").to_dict()


def test_unused_parts_of_k3_are_written_as_null():
    text = preset("default").to_dict()["text_config"]
    for key in ("attn_res_block_size", "routed_expert_hidden_size", "num_experts", "q_lora_rank"):
        assert key in text
        assert text[key] is None
    assert "quantization_config" not in text


@st.composite
def changes_of_tiny(draw):
    layers = draw(st.integers(1, 6))
    full = tuple(i for i in range(1, layers + 1) if draw(st.booleans()))
    size = st.integers(1, 40)
    changes = {
        "num_hidden_layers": layers,
        "kda_layers": tuple(i for i in range(1, layers + 1) if i not in full),
        "full_attn_layers": full,
        "hidden_size": draw(size),
        "q_lora_rank": draw(st.none() | size),
        "qk_rope_head_dim": draw(st.integers(0, 9)),
        "num_attention_heads": draw(st.integers(0 if not full else 1, 5)),
        "kda_head_dim": draw(size),
        "kda_num_heads": draw(size),
        "gate_lower_bound": draw(st.none() | st.floats(-9, -0.5)),
        "use_full_rank_gate": draw(st.booleans()),
        "mla_use_output_gate": draw(st.booleans()),
        "attn_res_block_size": draw(st.none() | size),
        "hidden_act": draw(st.sampled_from(["silu", "situ"])),
        "tie_word_embeddings": draw(st.booleans()),
        "eos_token_id": draw(st.none() | st.integers(0, 255)),
        "dtype": draw(st.sampled_from(["bfloat16", "float32"])),
        "max_position_embeddings": draw(size),
        "moe_renormalize": draw(st.booleans()),
    }
    if changes["hidden_act"] == "situ":
        changes["activation_situ_beta"] = draw(st.none() | st.floats(0.5, 9))
        changes["activation_situ_linear_beta"] = draw(st.none() | st.floats(0.5, 9))
    if draw(st.booleans()):
        changes["first_k_dense_replace"] = draw(st.integers(0, layers - 1))
        changes["routed_expert_hidden_size"] = draw(st.none() | size)
        if draw(st.booleans()) and changes["routed_expert_hidden_size"]:
            changes["latent_moe_use_norm"] = True
    else:
        changes.update(
            num_experts=None,
            num_experts_per_token=None,
            moe_intermediate_size=None,
            num_shared_experts=0,
            first_k_dense_replace=0,
        )
    if not any(changes[name] for name in ("gate_lower_bound", "attn_res_block_size")):
        changes["model_type"] = draw(st.sampled_from(["kimi_linear", "kimi_k3"]))
    return changes


@settings(max_examples=60, deadline=None)
@given(changes_of_tiny())
def test_writing_and_reading_gives_the_same_config(changes):
    config = TINY.replace(**changes)
    written = json.loads(json.dumps(config.to_dict()))
    assert HybridConfig.from_dict(written) == config
    assert written["model_type"] == config.published_class


def test_text_config_alone_is_read():
    alone = HybridConfig.from_dict(K3["text_config"])
    assert alone == preset("kimi-k3")
    assert alone.published_class == "kimi_k3"


# -- what transformers saves


def saved_by_transformers(config, tmp_path):
    transformers = pytest.importorskip("transformers")
    first, second = tmp_path / "ours", tmp_path / "theirs"
    first.mkdir()
    (first / "config.json").write_text(json.dumps(config.to_dict()))
    theirs = transformers.AutoConfig.from_pretrained(first)
    theirs.save_pretrained(second)
    return theirs, second


def dense(config):
    return config.replace(
        num_experts=None,
        num_experts_per_token=None,
        moe_intermediate_size=None,
        num_shared_experts=0,
        first_k_dense_replace=0,
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "config",
    [
        TINY,
        preset("kimi-linear-tiny-mla"),
        dense(TINY),
        TINY.replace(q_lora_rank=24, tie_word_embeddings=True, eos_token_id=3),
    ],
    ids=["tiny", "all-mla", "dense", "low-rank-query"],
)
def test_transformers_reads_ours_and_we_read_what_it_saves(config, tmp_path):
    theirs, folder = saved_by_transformers(config, tmp_path)
    kinds = ["full_attention" if config.is_global(i) else "linear_attention" for i in range(4)]
    assert theirs.layer_types == kinds
    assert [kind == "sparse" for kind in theirs.mlp_layer_types] == [
        config.is_moe(i) for i in range(4)
    ]
    assert theirs.tie_word_embeddings == config.tie_word_embeddings
    assert HybridConfig.from_pretrained(folder) == config


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_b71_config_made_by_transformers_without_linear_attn_config(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.KimiLinearConfig(num_hidden_layers=6).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "linear_attn_config" not in saved
    config = HybridConfig.from_dict(saved)
    assert config.full_attn_layers == (5,)
    assert (config.kda_num_heads, config.kda_head_dim) == (32, 128)
    assert config.first_k_dense_replace == 1
    refused(edited(saved, layer_types=...), "linear_attn_config is missing, and so is layer_types")
    refused(edited(saved, linear_num_heads=...), r"linear_attn_config.num_heads is missing \(or li")
    refused(edited(saved, linear_head_dim=...), r"linear_attn_config.head_dim is missing \(or li")


def test_b71_missing_linear_attn_config_is_no_all_mla_model():
    refused(edited(linear_attn_config=...), "linear_attn_config is missing")
    refused(edited(linear_attn_config=None), "linear_attn_config is missing")
    refused(edited(linear_attn_config=[4, 8]), "linear_attn_config must be an object")
    for key in ("kda_layers", "full_attn_layers", "head_dim", "num_heads"):
        refused(edited(linear_attn_config={key: None}), f"linear_attn_config.{key} is missing")
    refused(edited(moe_router_activation_func="softmax"), "moe_router_activation_func must be 'sig")
    refused(edited(hidden_act="gelu"), "hidden_act must be one of silu, situ, got 'gelu'")
    refused(k3(linear_attn_config={"gate_lower_bound": 0.0}), "gate_lower_bound .* below 0")


def by_name(kda="linear_attention", full="full_attention"):
    lists = KIMI_LINEAR["linear_attn_config"]
    return [full if i in lists["full_attn_layers"] else kda for i in range(1, 28)]


def test_b69_layer_types_are_known_names_or_refused():
    for kda in ("linear_attention", "kda_attention"):
        only_names = edited(
            layer_types=by_name(kda),
            linear_attn_config=...,
            linear_head_dim=128,
            linear_num_heads=32,
            linear_conv_kernel_dim=4,
        )
        assert HybridConfig.from_dict(only_names) == preset("kimi-linear-48b")
    assert read(layer_types=by_name()) == preset("kimi-linear-48b")
    refused(edited(layer_types=by_name("mamba")), "layer_types calls layer 1 'mamba'; it must be")
    refused(edited(layer_types=by_name(full="attention")), "layer_types calls layer 4 'attention'")
    refused(edited(layer_types=by_name()[:-1]), "layer_types must be a list with one name for each")
    refused(edited(layer_types="full_attention"), "layer_types must be a list")
    wrong = [*by_name()[1:], "full_attention"]
    refused(edited(layer_types=wrong), "linear_attn_config.kda_layers is .*, but layer_types says")


def test_mlp_layer_types_agree_or_are_refused():
    names = ["dense", *["sparse"] * 26]
    assert read(mlp_layer_types=names) == preset("kimi-linear-48b")
    only = read(mlp_layer_types=names, first_k_dense_replace=..., moe_layer_freq=...)
    assert only == preset("kimi-linear-48b")
    refused(edited(mlp_layer_types=["sparse"] * 27), "mlp_layer_types calls layer 1 sparse, but")
    refused(edited(mlp_layer_types=names, moe_layer_freq=2), "calls layer 2 sparse, but .*freq 2")
    refused(edited(mlp_layer_types=["moe"] * 27), "mlp_layer_types calls layer 1 'moe'")
    refused(edited(first_k_dense_replace=...), "first_k_dense_replace is missing, and so is mlp_")
    none = edited(mlp_layer_types=names, num_experts=None, first_k_dense_replace=...)
    refused(none, "mlp_layer_types calls layer 2 sparse, but num_experts is missing")


# -- collected reports


def test_b27_config_without_a_shared_key():
    config = read(qk_rope_head_dim=0, qk_head_dim=128)
    assert (config.latent_dim, config.qk_head_dim) == (512, 128)
    assert latent_bytes_per_token(config) == 7 * 512 * 2
    refused(edited(qk_head_dim=128), "qk_head_dim is 128, but .* is 192")


def test_b28_low_rank_query_null_missing_zero_and_set():
    assert read(q_lora_rank=None).q_lora_rank is None
    assert read(q_lora_rank=...).q_lora_rank is None
    assert read(q_lora_rank=0).q_lora_rank is None
    assert read(q_lora_rank=24).q_lora_rank == 24
    refused(edited(q_lora_rank=-1), "q_lora_rank must be an integer of at least 1, got -1")
    refused(edited(q_lora_rank=False), "q_lora_rank must be an integer of at least 1, got False")


def test_b58_tie_flag_outside_inside_missing_and_contradictory():
    both = {"tie_word_embeddings": ...}
    assert HybridConfig.from_dict(edited(k3(**both), tie_word_embeddings=True)).tie_word_embeddings
    inside = edited(k3(tie_word_embeddings=True), tie_word_embeddings=...)
    assert HybridConfig.from_dict(inside).tie_word_embeddings
    missing = edited(k3(**both), tie_word_embeddings=...)
    assert HybridConfig.from_dict(missing).tie_word_embeddings is False
    assert read(tie_word_embeddings=...).tie_word_embeddings is False
    assert read(tie_word_embeddings=True).tie_word_embeddings is True
    refused(k3(tie_word_embeddings=True), "tie_word_embeddings is False outside text_config and T")
    refused(edited(tie_word_embeddings="no"), "tie_word_embeddings must be true or false, got 'no'")


def test_b64_the_lists_decide_and_not_a_rule():
    config = HybridConfig.from_dict(K3)
    assert (config.num_global_layers, config.num_kda_layers) == (24, 69)
    assert config.num_global_layers + config.num_kda_layers == config.num_hidden_layers
    assert config.num_moe_layers == 92
    assert not config.is_moe(0)
    assert not config.is_global(0)
    assert config.is_global(91)
    assert config.is_global(92)
    assert [i for i in range(93) if config.is_global(i)] == [*range(3, 92, 4), 92]


@pytest.mark.parametrize(
    ("kda", "full"),
    [
        ((1, 2, 3, 4, 5), (6,)),
        ((1, 2, 4, 5), (3, 6, 7)),
        ((1,), ()),
        ((), (1, 2, 3, 4)),
        ((2, 3), (1,)),
        ((3,), (1, 2)),
    ],
)
def test_b65_any_layout_is_read_and_written(kda, full):
    layers = len(kda) + len(full)
    config = dense(TINY).replace(num_hidden_layers=layers, kda_layers=kda, full_attn_layers=full)
    assert HybridConfig.from_dict(config.to_dict()) == config
    assert latent_bytes_per_token(config) == len(full) * 40 * 4


@pytest.mark.parametrize("base", [KIMI_LINEAR, K3["text_config"]], ids=["48b", "k3"])
def test_b66_head_dim_is_read_by_nobody(base):
    for head_dim in (72, 256, None):
        config = read(base, head_dim=head_dim)
        assert config == HybridConfig.from_dict(edited({**base, "head_dim": 1}, head_dim=...))
        assert config.kda_head_dim == 128
        assert config.qk_head_dim == 192


def test_b67_key_value_heads_do_not_size_the_latent():
    for heads in (1, 32, 96, ...):
        config = read(num_key_value_heads=heads)
        assert config == preset("kimi-linear-48b")
        assert latent_bytes_per_token(config) == 8064


def test_b68_kda_heads_are_their_own():
    nested = {"num_heads": 4, "head_dim": 32}
    config = read(num_attention_heads=8, v_head_dim=24, linear_attn_config=nested)
    assert (config.kda_num_heads, config.kda_head_dim, config.num_attention_heads) == (4, 32, 8)
    kda = layer_parameters(config, 1)["kda"]
    projections = 4 * 2304 * 128 + 3 * 128 * 4
    low_rank = 2 * (2304 * 32 + 32 * 128)
    assert kda == projections + low_rank + 2304 * 4 + 4 + 128 + 32
    refused(edited(linear_num_heads=16), "linear_attn_config.num_heads says 32 and linear_num_h")


# -- strictness


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rotary_pct": 0.5}, "unknown config key rotary_pct"),
        ({"linear_attn_config": {"expand_v": 2}}, "unknown config key linear_attn_config.expand_v"),
        ({"mla_use_nope": False}, "mla_use_nope must be true, got False"),
        ({"attention_bias": True}, "attention_bias must be false, got True"),
        ({"attention_dropout": 0.1}, "attention_dropout must be 0, got 0.1"),
        ({"topk_method": "greedy"}, "topk_method must be 'noaux_tc', got 'greedy'"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers must be 0, got 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "rope_scaling must be null, got"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters must be null or"),
        ({"use_grouped_topk": False, "num_expert_group": 2}, "use_grouped_topk is False"),
        ({"hidden_size": ...}, "hidden_size is missing; add it"),
        ({"kv_lora_rank": None}, "kv_lora_rank is missing; add it"),
        ({"rms_norm_eps": ...}, "rms_norm_eps is missing"),
        ({"num_experts_per_token": ...}, "num_experts_per_token is missing"),
        ({"num_shared_experts": ...}, "num_shared_experts is missing"),
        ({"routed_scaling_factor": ...}, "routed_scaling_factor is missing"),
        ({"num_experts": None}, "num_experts_per_token is 8, but num_experts is not set"),
        ({"num_hidden_layers": 28}, "layer 28 is in neither"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, got 0"),
        ({"max_position_embeddings": 7}, "max_position_embeddings says 7 and model_max_length"),
        ({"torch_dtype": "float16"}, "dtype says 'bfloat16' and torch_dtype says 'float16'"),
        ({"eos_token_id": [1, 2]}, r"eos_token_id must be an integer of at least 0, got \[1, 2\]"),
        ({"model_type": "llama"}, "model_type must be one of kimi_linear, kimi_k3, got 'llama'"),
        ({"model_type": "deepseek_v3"}, "got 'deepseek_v3'; models of another architecture"),
        ({"model_type": ...}, "model_type is missing"),
        ({"model_type": "kimi_k3"}, "text_config must be an object"),
    ],
)
def test_published_config_refuses(changes, match):
    refused(edited(**changes), match)


def test_k3_refuses_what_stands_outside():
    refused(edited(K3, audio_config={}), "unknown config key audio_config")
    refused(edited(K3, eos_token_id=5), "eos_token_id is 5 outside text_config and 163586 inside")
    refused(k3(model_type="llama"), "text_config.model_type must be 'kimi_linear', got 'llama'")
    # the class of K3 rotates when the key is absent
    refused(k3(mla_use_nope=...), "mla_use_nope must be true, got False")
    refused([1], "a config must be a mapping, got list")


def test_what_is_spelled_otherwise_is_read():
    assert read(mla_use_nope=...) == preset("kimi-linear-48b")
    assert read(eos_token_id=[163586]) == preset("kimi-linear-48b")
    assert read(dtype=..., torch_dtype="bfloat16") == preset("kimi-linear-48b")
    nulls = dict.fromkeys(("rope_scaling", "rope_parameters", "rope_theta", "head_dim"))
    assert read(**nulls) == preset("kimi-linear-48b")
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    assert read(rope_parameters=plain, rope_scaling=plain) == preset("kimi-linear-48b")
    assert read(K3, text_config={"activation_situ_beta": 0.0}).activation_situ_beta is None
    quantization = K3["text_config"]["quantization_config"]
    outside = edited(k3(quantization_config=...), quantization_config=quantization)
    assert HybridConfig.from_dict(outside) == preset("kimi-k3")


def test_reading_leaves_the_dictionary_alone():
    before = json.dumps(K3)
    HybridConfig.from_dict(K3)
    assert json.dumps(K3) == before


# -- files


def test_from_pretrained_takes_folder_or_file(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KIMI_LINEAR))
    assert HybridConfig.from_pretrained(tmp_path) == preset("kimi-linear-48b")
    assert HybridConfig.from_pretrained(str(tmp_path / "config.json")).vocab_size == 163840
    assert stored_parameters(HybridConfig.from_pretrained(tmp_path)) == 49_122_681_728


@pytest.mark.parametrize(
    ("contents", "match"),
    [
        (None, "config.json does not exist; give a checkpoint folder"),
        (b"", "is not valid JSON"),
        (b'{"model_type": "kimi_lin', "is not valid JSON"),
        (b"\xff\xfe\x00", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[1, 2]", "must hold one JSON object, got list"),
        (b"null", "must hold one JSON object, got NoneType"),
    ],
)
def test_bad_files_are_one_sentence(tmp_path, contents, match):
    if contents is not None:
        (tmp_path / "config.json").write_bytes(contents)
    with pytest.raises(ConfigError, match=match) as caught:
        HybridConfig.from_pretrained(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_path_through_a_file_is_one_sentence(tmp_path):
    (tmp_path / "weights").write_text("")
    with pytest.raises(ConfigError, match=r"config.json cannot be read \(Not a directory\)"):
        HybridConfig.from_pretrained(tmp_path / "weights" / "config.json")

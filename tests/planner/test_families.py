"""One config of each family: parameters and cache against transformers' own modules and cache.

The configs are the defaults of transformers' classes, changed only as each row says. Parameters are
counted of the whole model without storage. The cache is that of the same config cut to one layer of
each kind, with a small hidden width, vocabulary and feed-forward, which a cache does not see.
"""

import warnings
from dataclasses import dataclass, field

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, DynamicCache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from interlace.errors import ConfigError
from interlace.planner import plan
from interlace.planner.families import FAMILIES, describe

BATCH, TOKENS = 2, 40
WINDOW = 16

ONE = {"num_hidden_layers": 1}
MIXED = {
    "num_hidden_layers": 2,
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"],
}
HYBRID = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
FEW = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}


@dataclass
class Family:
    """One row.

    Args:
        numbers: kept per token over one layer of each kind, by hand; bf16, so bytes are twice that.
        cut: to one layer of each kind.
        windowed: numbers per token of the layer with a window.
        full: what the class's defaults lack.
        windows: bytes of convolution windows that transformers keeps beyond ours, by hand.
    """

    numbers: int
    cut: dict
    full: dict = field(default_factory=dict)
    windowed: int = 0
    windows: int = 0


FAMILY = {
    # 2 x 32 heads x 128
    "llama": Family(8192, {**ONE, "head_dim": 128}),
    # 2 x 8 x 128 in a window: transformers keeps one token fewer than a query reaches, itself
    # included, since the query brings that one along
    "mistral": Family(0, {**ONE, "head_dim": 128, "sliding_window": WINDOW}, windowed=2048),
    # 2 x 8 x 128
    "mixtral": Family(2048, {**ONE, "head_dim": 128, "num_local_experts": 2, **FEW}),
    # 2 x 32 x 128; the head's width is hidden_size / heads, so that stays as it is
    "qwen2": Family(8192, {**ONE, "hidden_size": 4096, "layer_types": ["full_attention"]}),
    "qwen3": Family(8192, {**ONE, "layer_types": ["full_attention"]}),
    # 2 x 4 x 128
    "qwen3_moe": Family(1024, {**ONE, "num_experts": 2, "head_dim": 128, **FEW}),
    # 2 x 4 x 256 in each of both layers
    "gemma2": Family(2048, MIXED, windowed=2048),
    "gemma3_text": Family(2048, MIXED, windowed=2048),
    # 2 x 8 x 64 in each
    "gpt_oss": Family(
        1024, {**MIXED, "num_local_experts": 2, "num_experts_per_tok": 2}, windowed=1024
    ),
    # 512 + 64; num_key_value_heads is 32 there
    "deepseek_v2": Family(
        576,
        {**ONE, "first_k_dense_replace": 1, "n_routed_experts": 2, **FEW},
        full={"num_experts_per_tok": 6},
    ),
    # 512 + 64; num_key_value_heads is 128 there
    "deepseek_v3": Family(576, {**ONE, "first_k_dense_replace": 1, "n_routed_experts": 8, **FEW}),
    # 512 + 64, and 128 of the indexer
    "deepseek_v32": Family(
        704,
        {
            **ONE,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "mlp_layer_types": ["dense"],
            "layer_types": ["indexed_attention"],
            **FEW,
        },
    ),
    # 512 + 64; its window holds W tokens, the newest among them: 12,288 channels once more
    "kimi_linear": Family(
        576,
        {
            **HYBRID,
            "first_k_dense_replace": 2,
            "mlp_layer_types": ["dense", "dense"],
            "num_experts": 4,
            "num_experts_per_token": 2,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        },
        windows=3 * 32 * 128 * 2,
    ),
    # 2 x 2 x 256; 2 x 16 x 128 + 32 x 128 channels once more
    "qwen3_next": Family(
        1024,
        {**HYBRID, "num_experts": 4, "shared_expert_intermediate_size": 32, **FEW},
        windows=8192 * 2,
    ),
    # 2 x 4 x 256
    "qwen3_5_text": Family(2048, HYBRID, windows=8192 * 2),
    # 2 x 2 x 256
    "qwen3_5_moe_text": Family(
        1024,
        {**HYBRID, "num_experts": 4, "shared_expert_intermediate_size": 32, **FEW},
        windows=8192 * 2,
    ),
    # 2 x 8 x 128; 128 x 64 + 2 x 8 x 128 channels once more
    "nemotron_h": Family(
        2048,
        {"layers_block_type": ["linear_attention", "full_attention"]},
        windows=10_240 * 2,
    ),
    # 2 x 8 x hidden_size / 32 heads; twice the hidden width of channels once more
    "jamba": Family(
        256,
        {
            "num_hidden_layers": 2,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "hidden_size": 512,
            "num_experts": 2,
        },
        windows=2 * 512 * 2,
    ),
    # an encoder keeps nothing
    "bert": Family(0, {}),
}


def config_of(model_type, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CONFIG_MAPPING[model_type](**changes)


def build(config, device="meta"):
    kind = AutoModel if config.model_type == "bert" else AutoModelForCausalLM
    with torch.device("meta"):
        model = kind.from_config(config, dtype=torch.bfloat16).eval()
    if device != "meta":
        # zeros: only shapes count here, and drawing weights takes longer than all the rest
        model = model.to_empty(device=device)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data.zero_()
    return model


def test_every_family_has_a_row():
    assert set(FAMILY) == {*FAMILIES, "kimi_linear"} - {"kimi_k2"}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("model_type", FAMILY)
def test_parameters_are_those_of_transformers(model_type):
    config = config_of(model_type, **FAMILY[model_type].full)
    model = build(config)
    counted = sum(p.numel() for p in model.parameters())
    # published as tensors, but no parameters there
    counted += sum(
        b.numel() for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")
    )
    assert describe(config.to_dict(), model_type).parameters == counted


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("model_type", [name for name in FAMILY if name != "bert"])
def test_cache_is_that_of_transformers(model_type):
    row = FAMILY[model_type]
    small = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 32}
    config = config_of(model_type, **{**small, **row.full, **row.cut})
    model, cache = build(config, "cpu"), DynamicCache(config=config)
    with torch.no_grad():
        model(torch.ones(BATCH, TOKENS, dtype=torch.long), cache=cache, use_cache=True)
    grown, states, windows = cache_bytes(cache)

    p = plan({**config.to_dict(), "dtype": "bfloat16"}, context=TOKENS, batch=BATCH)
    assert p.nbytes("cache") == 2 * BATCH * (TOKENS * row.numbers + WINDOW * row.windowed)
    assert p.nbytes("cache") - grown == 2 * BATCH * row.windowed
    ours = {"recurrent": 0, "convolution": 0}
    for item in p.items:
        if item.group == "state":
            ours[item.name.split()[0]] += item.nbytes(BATCH, TOKENS)
    assert ours["recurrent"] == states
    assert windows - ours["convolution"] == BATCH * row.windows
    everything = p.with_request(window="full")
    assert everything.nbytes("cache") == 2 * BATCH * TOKENS * (row.numbers + row.windowed)


def cache_bytes(cache):
    grown = states = windows = 0
    for layer in cache.layers:
        for name in ("keys", "values", "indexer_keys"):
            tensor = getattr(layer, name, None)
            grown += 0 if tensor is None else tensor.nbytes
        states += sum(x.nbytes for x in getattr(layer, "recurrent_states", {}).values())
        windows += sum(x.nbytes for x in getattr(layer, "conv_states", {}).values())
    return grown, states, windows


# -- keys


def llama(**changes):
    base = {
        "model_type": "llama",
        "vocab_size": 128,
        "hidden_size": 96,
        "intermediate_size": 200,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not ...}


def test_unknown_architecture_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"model_type .mamba9. has no reader, .* are bert"):
        plan({"model_type": "mamba9"}, context=1)
    with pytest.raises(ConfigError, match="model_type None has no reader"):
        plan({}, context=1)


def test_unknown_keys_and_parts_are_named():
    config = llama(num_nextn_predict_layers=2, vision_config={"a": 1}, memory_layers=3, use_x=False)
    notes = plan(config, context=1).description.notes
    assert "not counted: 2 layers that predict further tokens" in notes
    assert "not counted: the vision tower" in notes
    assert "keys whose effect is not known: memory_layers" in notes
    # and in what a person reads
    from interlace.planner.report import report

    assert "note: keys whose effect is not known: memory_layers" in report(plan(config, context=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": ...}, "hidden_size is missing in this llama config"),
        ({"hidden_size": "96"}, "hidden_size must be an integer of at least 1, got '96'"),
        ({"num_key_value_heads": 4}, "num_key_value_heads must divide num_attention_heads"),
        (
            {"num_attention_heads": 7, "num_key_value_heads": 7},
            "no multiple of num_attention_heads",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types must name each of num_hidden_layers 3"),
        ({"layer_types": ["odd"] * 3}, "layer_types must hold full_attention, .*, got 'odd'"),
        ({"layer_types": ["sliding_attention"] * 3}, "sliding_window is missing"),
        ({"dtype": "int7"}, "dtype must be one of"),
        ({"mlp_bias": True}, "mlp_bias must be false"),
        ({"quantization_config": "int4"}, "quantization_config must be an object"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
    ],
)
def test_broken_config_is_one_sentence(changes, message):
    with pytest.raises(ConfigError, match=message):
        plan(llama(**changes), context=1)


def test_packed_weights_of_an_unknown_kind_must_be_said():
    config = llama(quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(ValueError, match=r"packed in a format that is not known \(awq\); say how"):
        plan(config, context=1)
    assert plan(config, context=1, weights="int4").nbytes("weights") > 0


def test_nested_text_config_is_unwrapped():
    config = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10_240,
            "num_hidden_layers": 34,
            "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152},
        "torch_dtype": "bfloat16",
    }
    p = plan(config, context="128Ki")
    # every sixth of 34 layers is global: 5 x 2 x 4 heads x 256 x 2 bytes
    assert p.bytes_per_token == 5 * 4096
    assert p.nbytes("cache") == 5 * 4096 * 2**17 + 29 * 4096 * 1024
    assert "not counted: the vision tower" in p.description.notes
    assert any("head_dim = 256" in note for note in p.description.notes)


def test_kimi_k2_in_the_form_of_k25():
    from interlace.planner.source import published

    text = {**published()["kimi-k2"]["config"], "model_type": "kimi_k2"}
    packing = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}}}
    text["quantization_config"] = {"quant_method": "compressed-tensors", **packing}
    p = plan({"model_type": "kimi_k25", "text_config": text}, context=1)
    assert p.bytes_per_token == 70_272
    routed = 60 * 384 * 3 * 7168 * 2048
    sizes = {item.name: item.fixed for item in p.items}
    assert sizes["routed experts, int4"] == routed // 2
    assert sizes["scales of routed experts, int4"] == routed // 32 * 2

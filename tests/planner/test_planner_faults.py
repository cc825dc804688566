"""Reported faults of other calculators, each as the smallest input that shows it."""

import json

import pytest
import torch

import interlace
from interlace.config import preset
from interlace.errors import ConfigError, InputError
from interlace.planner import plan
from interlace.planner.families import describe
from interlace.planner.report import report
from interlace.planner.source import published as known_models


def attention(**changes):
    base = {
        "model_type": "llama",
        "vocab_size": 128,
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "head_dim": 20,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    return {**base, **changes}


def test_b73_only_layers_with_attention_are_charged():
    assert plan("kimi-k3", context=1).bytes_per_token == 27_648
    assert plan("kimi-linear-48b", context=1).bytes_per_token == 8_064
    # Qwen3.6-35B-A3B: 10 of 40 layers attend, 2 key/value heads of 256
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = {**CONFIG_MAPPING["qwen3_5_moe_text"]().to_dict(), "dtype": "bfloat16"}
    assert plan(config, context=1).bytes_per_token == 20_480


def test_b74_the_latent_is_counted_once_and_with_its_shared_key():
    p = plan("deepseek-v3", context=1)
    assert p.bytes_per_token == 61 * (512 + 64) * 2 == 70_272
    assert p.bytes_per_token not in (124_928, 4_997_120)


def test_b75_latent_and_expanded_are_those_of_the_caches():
    lm = interlace.build("kimi-linear-tiny", seed=0)
    p = plan(lm.config, context=37, batch=3)
    assert lm.new_cache(3, capacity=37).latent_bytes == p.nbytes("cache")
    expanded = plan(lm.config, context=37, batch=3, cache="expanded")
    keys_values = [torch.zeros(3, 37, 4, width) for width in (24, 16)]
    assert sum(x.nbytes for x in keys_values) == expanded.nbytes("cache")
    assert expanded.not_run_here == ("an expanded cache",)


def test_b76_head_dim_is_its_own_field_and_only_key_value_heads_count():
    assert plan("qwen3-4b", context=1).bytes_per_token == 147_456
    grouped = attention(num_key_value_heads=2)
    assert plan(grouped, context=1).bytes_per_token == 3 * 2 * 2 * 20 * 2
    # missing: hidden width over heads, only where they divide
    del grouped["head_dim"]
    assert plan(grouped, context=1).bytes_per_token == 3 * 2 * 2 * 16 * 2
    with pytest.raises(
        ConfigError, match="head_dim is missing, and hidden_size 100 is no multiple"
    ):
        plan({**grouped, "hidden_size": 100}, context=1)


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        # tokens x layers x (keys and values) x heads x width x 2 bytes
        (attention(), {}, 50 * 3 * 2 * 6 * 20 * 2),
        (attention(num_key_value_heads=3), {}, 50 * 3 * 2 * 3 * 20 * 2),
        (attention(num_key_value_heads=1), {}, 50 * 3 * 2 * 1 * 20 * 2),
        (
            attention(model_type="mistral", sliding_window=8),
            {"window": "ring"},
            8 * 3 * 2 * 6 * 20 * 2,
        ),
        (
            attention(model_type="mistral", sliding_window=8),
            {"window": "full"},
            50 * 3 * 2 * 6 * 20 * 2,
        ),
        ("deepseek-v3", {}, 50 * 70_272),
        ("kimi-linear-48b", {}, 50 * 8_064),
        (attention(model_type="bert", type_vocab_size=2, max_position_embeddings=64), {}, 0),
    ],
    ids=["multi-head", "grouped", "one head", "ring", "full window", "MLA", "hybrid", "encoder"],
)
def test_b77_each_kind_of_attention_has_its_formula(config, options, expected):
    assert plan(config, context=50, **options).nbytes("cache") == expected


def test_b78_devices_share_heads_and_never_the_latent():
    for tp in (1, 2, 8):
        p = plan("kimi-k3", context=1000, tp=tp)
        assert p.nbytes("cache") == 1000 * 27_648
        assert p.nbytes("state") * tp == plan("kimi-k3", context=1).nbytes("state")
    # 8 key/value heads: a share each, then repeated
    whole = plan("qwen3-4b", context=1000).nbytes("cache")
    for tp, share in ((2, 2), (8, 8), (16, 8), (32, 8)):
        assert plan("qwen3-4b", context=1000, tp=tp).nbytes("cache") * share == whole
    with pytest.raises(InputError, match="tp must divide the 96 heads of each KDA layer, got 9"):
        plan("kimi-k3", context=1000, tp=9)
    assert "the whole latent on every device" in report(plan("kimi-k3", context=1000, tp=8))


def test_b79_decimal_and_binary_are_both_labelled_and_json_is_bytes():
    text = report(plan("kl2", context=1000, memory="80GB"))
    assert "80.0 GB (74.5 GiB)" in text
    assert plan("kl2", context=1, memory="80GiB").budget == 80 * 2**30
    found = json.loads(json.dumps(plan("kl2", context=1000, memory="80GB").to_dict()))
    assert found["memory"]["budget"] == 80_000_000_000
    assert all(isinstance(item["bytes"], int) for item in found["items"])


@pytest.mark.parametrize("context", [1, 1000, 10**6])
@pytest.mark.parametrize("batch", [1, 3])
def test_b81_the_state_is_paid_once_per_sequence(context, batch):
    def kept(context, batch):
        p = plan("kimi-linear-48b", context=context, batch=batch)
        return p.nbytes("cache") + p.nbytes("state")

    assert kept(context, batch) == batch * (43_417_600 + context * 8_064)
    p = plan("kimi-linear-48b", context=context, batch=batch)
    assert p.longest_context(p.total_bytes) == context


def test_b82_experts_are_split_and_router_and_shared_experts_are_not():
    def held(**options):
        found = {}
        for item in plan("kimi-k3", context=1, **options).items:
            group = item.name.split(", ")[0].removeprefix("scales of ")
            found[group] = found.get(group, 0) + item.fixed
        return found

    alone, experts, tensors = held(), held(ep=8), held(tp=8)
    assert experts["routed experts"] * 8 == alone["routed experts"]
    assert experts["shared experts"] == alone["shared experts"]
    assert experts["router"] == alone["router"]
    # the inner width of each expert
    assert tensors["routed experts"] * 8 == alone["routed experts"]
    with pytest.raises(InputError, match="tp must divide the 100 hidden width of each dense"):
        plan(attention(intermediate_size=100), context=1, tp=3)


def test_b83_unknown_precisions_are_refused_and_scales_are_counted():
    for name in ("cache_dtype", "state_dtype"):
        with pytest.raises(ConfigError, match=f"{name} must be one of .*, got 'foo'"):
            plan("kimi-k3", context=1, **{name: "foo"})
    with pytest.raises(InputError, match=r"weights must be one of .*, got 'foo'"):
        plan("kimi-k3", context=1, weights="foo")
    half = plan("kimi-k3", context=1, cache_dtype="int8").bytes_per_token
    assert half == 24 * (576 + 18 * 2) > 27_648 // 2


def test_b84_states_per_sequence_are_those_of_the_engine():
    p = plan("kimi-linear-tiny", context=16, batch=5)
    lm = interlace.build("kimi-linear-tiny", seed=0)
    assert lm.new_cache(5).state_bytes == p.nbytes("state")
    drafting = p.with_request(state_copies=1 + 3)
    assert drafting.nbytes("state") == 4 * p.nbytes("state")
    assert "more than one state per sequence" in drafting.not_run_here


def test_b85_a_printed_total_is_the_sum_of_its_lines():
    p = plan("kimi-k3", context="1M", batch=3)
    found = p.to_dict()
    for group in ("weights", "cache", "state"):
        lines = [item["bytes"] for item in found["items"] if item["group"] == group]
        assert sum(lines) == found["bytes"][group]
    parts = sum(found["bytes"][group] for group in ("weights", "cache", "state"))
    assert parts + max(found["activations"].values()) == found["bytes"]["total"]
    # shapes: 69 layers of 96 heads x 128 x 128 x 4 bytes
    states = {i.name: i.per_sequence for i in p.items}
    assert states["recurrent state, KDA"] == 69 * 96 * 128 * 128 * 4


def test_b66_b67_keys_that_mean_nothing_change_nothing():
    published = preset("mid").to_dict()
    for key, value in (("head_dim", 7), ("num_key_value_heads", 3)):
        assert (
            describe({**published, key: value}, "mid").mixers == describe(published, "mid").mixers
        )
    v3 = known_models()["deepseek-v3"]["config"]
    for heads in (1, 128, 999):
        assert plan({**v3, "num_key_value_heads": heads}, context=1).bytes_per_token == 70_272

"""Bytes: the article's table from its own configuration, golden values, and how devices share."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.config import preset
from interlace.errors import ConfigError, InputError
from interlace.planner import plan
from interlace.planner.compare import all_mla, mha
from interlace.planner.plan import plan_for
from interlace.planner.source import find

MIB, GIB = 2**20, 2**30
M = 1_000_000


def mixer(description, kind):
    return next(m for m, _ in description.mixers if m.kind == kind)


# -- the article's table, from K3's configuration


def test_articles_latent_row():
    p = plan("kimi-k3", context="1M")
    latent = mixer(p.description, "mla")
    assert latent.cached == 512 + 64 == 576
    layers = {m.kind: n for m, n in p.description.mixers}
    assert layers == {"state": 69, "mla": 24}
    assert 24 * latent.cached == 13_824
    assert p.nbytes("cache") == 24 * 576 * 2 * M == 27_648_000_000  # 27.6 GB


def test_articles_61_layers_as_in_k2():
    p = plan("kimi-k2", context="1M")
    assert p.bytes_per_token // 2 == 61 * 576 == 35_136
    assert round(p.nbytes("cache") / 1e9) == 70


def test_articles_multi_head_row():
    p = plan_for(mha(find("kimi-k3")), context="1M")
    numbers = mixer(p.description, "attention").cached
    assert numbers == 96 * 128 * 2 == 24_576
    assert round(24 * numbers / 1000) == 590
    assert round(p.nbytes("cache") / 1e12, 2) == 1.18
    assert round(numbers / 576, 1) == 42.7


def test_articles_expanded_cache_of_the_reference():
    p = plan("kimi-k3", context="1M", cache="expanded")
    # 96 heads of 192 + 128
    assert p.bytes_per_token == 24 * 30_720 * 2
    assert round(p.nbytes("cache") / 1e12, 2) == 1.47
    assert round(30_720 / 576, 1) == 53.3


def test_articles_state():
    two_bytes = plan("kimi-k3", context="1M", state_dtype="bf16")
    size = two_bytes.nbytes("state")
    assert size == 69 * (96 * 128 * 128 + 3 * 3 * 12_288) * 2
    assert round(size / 1e6) == 232
    assert round(size / two_bytes.bytes_per_token / 1000, 1) == 8.4
    as_allocated = plan("kimi-k3", context="1M").nbytes("state")
    assert round(as_allocated / MIB, 2) == 428.55


def test_articles_ratios():
    k3, k48 = find("kimi-k3"), find("kimi-linear-48b")
    for hybrid, layers, full in ((k3, 93, 24), (k48, 27, 7)):
        every = plan_for(all_mla(hybrid), context="1M").bytes_per_token
        own = plan_for(hybrid, context="1M").bytes_per_token
        assert every / own == layers / full
    assert round(93 / 24, 3) == 3.875
    assert round(27 / 7, 2) == 3.86
    assert round(100 * (1 - 24 / 93), 1) == 74.2
    assert round(100 * (1 - 7 / 27), 1) == 74.1


# -- golden values


@pytest.mark.parametrize(
    ("model", "per_token"),
    [
        ("kimi-k3", 27_648),  # 24 layers x 576 x 2 bytes
        ("kimi-linear-48b", 8_064),  # 7 x 576 x 2
        ("deepseek-v3", 70_272),  # 61 x 576 x 2
        ("kimi-k2", 70_272),
        ("qwen3-4b", 147_456),  # 36 x 2 x 8 heads x 128 x 2
        ("llama-3.1-8b", 131_072),  # 32 x 2 x 8 x 128 x 2
        ("qwen3-next-80b", 24_576),  # 12 of 48 layers x 2 x 2 x 256 x 2
        ("nemotron-h-8b", 16_384),  # 4 of 52 layers x 2 x 8 x 128 x 2
        ("jamba-v0.1", 16_384),  # 4 of 32 layers x 2 x 8 x 128 x 2
        ("gpt-oss-120b", 36_864),  # 18 of 36 layers x 2 x 8 x 64 x 2, beyond the window
        ("gemma-2-2b", 53_248),  # 13 of 26 layers x 2 x 4 x 256 x 2, beyond the window
    ],
)
def test_bytes_of_one_more_token(model, per_token):
    p = plan(model, context="1Mi")
    assert p.bytes_per_token == per_token
    more = p.with_request(context=2**20 + 1)
    assert more.nbytes("cache") - p.nbytes("cache") == per_token


def test_golden_sizes():
    assert plan("kimi-k3", context="1Mi").nbytes("cache") == 28_991_029_248 == 27 * GIB
    small = plan("kimi-linear-48b", context=1)
    states = {item.name: item.per_sequence for item in small.items if item.group == "state"}
    assert states == {"recurrent state, KDA": 40 * MIB, "convolution windows, KDA": 1_474_560}
    assert find("kimi-linear-48b").parameters == 49_122_681_728
    assert find("kimi-k3").parameters == 2_779_484_476_000
    assert round(find("kimi-k3").active_parameters / 1e9, 2) == 105.36


def test_context_suffixes_are_decimal_and_binary():
    assert plan("kimi-k3", context="1M").request.context == 1_000_000
    assert plan("kimi-k3", context="1Mi").request.context == 1_048_576


# -- formats


def test_packed_experts_count_their_scales():
    p = plan("kimi-k3", context=1)
    sizes = {item.name: item.fixed for item in p.items}
    routed = 247_296 * 3072 * 3584
    assert sizes["routed experts, mxfp4"] == routed // 2
    assert sizes["scales of routed experts, mxfp4"] == routed // 32
    assert p.not_run_here == ()
    as_bf16 = plan("kimi-k3", context=1, weights="bf16")
    assert (
        as_bf16.nbytes("weights") - p.nbytes("weights") == routed * 2 - routed // 2 - routed // 32
    )


@pytest.mark.parametrize(("weights", "bits"), [("int8", 8.5), ("int4", 4.5), ("fp8", 8.001953125)])
def test_bits_per_packed_weight(weights, bits):
    p = plan("mid", context=1, weights=weights)
    dense = [i.fixed for i in p.items if "dense feed-forward" in i.name]
    assert sum(dense) * 8 / (8 * 3 * 1024 * 2048) == bits
    # embedding, head and norms stay as stored
    assert {i.name: i.fixed for i in p.items}["head, bfloat16"] == 4096 * 1024 * 2
    assert p.not_run_here == (f"weights in {weights}",)


def test_scales_of_a_packed_cache_are_counted():
    latents = {"bf16": 1152, "fp8": 576 + 5 * 4, "int8": 576 + 18 * 2, "int4": 288 + 18 * 2}
    for dtype, row in latents.items():
        p = plan("kimi-k3", context=1000, cache_dtype=dtype)
        assert p.bytes_per_token == 24 * row
        # a convolution window is never packed
        assert p.nbytes("state") == plan("kimi-k3", context=1).nbytes("state")
        expected = [] if dtype == "bf16" else [f"a cache in {dtype}"]
        assert [w for w in p.not_run_here if "cache" in w] == expected


def test_mxfp4_needs_experts():
    with pytest.raises(InputError, match="mxfp4 packs routed experts, and mid has none; use int4"):
        plan("mid", context=1, weights="mxfp4")
    assert plan("kimi-linear-48b", context=1, weights="mxfp4").nbytes("weights") < 30e9


def test_experts_on_disk_take_their_cache_and_no_more():
    whole = plan("kimi-k3", context="1M")
    routed = 92 * 896 * 3 * 3072 * 3584
    packed = routed // 2 + routed // 32
    # of plain weights the engine keeps none on disk
    unpacked = ("experts on disk that are not packed in MXFP4",)
    for name, weights in (("kimi-linear-48b", "as-stored"), ("kimi-k3", "bf16")):
        plain = plan(name, context=1, weights=weights, experts="disk")
        assert plain.not_run_here == unpacked
    # 16 of 896 experts are what one token visits
    p = plan("kimi-k3", context="1M", experts="disk")
    assert p.not_run_here == ()  # this engine reads experts from disk itself
    assert whole.nbytes("weights") - p.nbytes("weights") == packed - packed * 16 // 896
    assert p.to_dict()["disk"] == {"bytes": packed, "read_per_token_at_most": packed * 16 // 896}
    small = plan("kimi-k3", context="1M", experts="disk", expert_cache="8GB")
    assert whole.nbytes("weights") - small.nbytes("weights") == packed - 8 * 10**9
    # a cache is never larger than what it holds
    large = plan("kimi-k3", context="1M", experts="disk", expert_cache="9TB")
    assert large.nbytes("weights") == whole.nbytes("weights")
    shared = plan("kimi-k3", context="1M", experts="disk", ep=8).to_dict()["disk"]
    assert shared["bytes"] == packed // 8
    timed = plan("kimi-k3", context="1M", experts="disk", hardware="cpu")
    assert timed.not_counted == ("the time that experts take from disk",)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("mid", {"experts": "disk"}, "experts=disk needs a model with routed experts, and mid"),
        ("kimi-k3", {"expert_cache": "8GB"}, "expert_cache needs experts=disk, got memory"),
        ("kimi-k3", {"experts": "disk", "expert_cache": "8G"}, "expert_cache must be bytes with"),
        ("kimi-k3", {"experts": "tape"}, "experts must be one of memory, disk, got 'tape'"),
    ],
)
def test_experts_on_disk_are_checked(model, options, message):
    with pytest.raises(InputError, match=message):
        plan(model, context=1, **options)


# -- what fits


@settings(deadline=None, max_examples=20)
@given(
    context=st.integers(1, 10**7),
    batch=st.integers(1, 40),
    model=st.sampled_from(["kimi-linear-48b", "qwen3-4b", "gemma-2-2b", "kl-moe"]),
    slack=st.floats(0, 0.999),
)
def test_longest_context_inverts_the_total(context, batch, model, slack):
    p = plan(model, context=context, batch=batch)
    step = p.with_request(context=context + 1).total_bytes - p.total_bytes
    assert p.longest_context(p.total_bytes + int(slack * step)) == context


def test_largest_batch_inverts_the_total():
    p = plan("kimi-linear-48b", context="128K", batch=7)
    assert p.largest_batch(p.total_bytes) == 7
    assert p.largest_batch(p.total_bytes - 1) == 6
    with pytest.raises(InputError, match=r"memory must be at least .* for batch 1"):
        p.largest_batch(10**9)
    with pytest.raises(InputError, match="memory must be given"):
        p.longest_context()


def test_a_model_whose_memory_never_grows_has_no_longest_context():
    kda, full = preset("kl2").layout(4, None, final_global=False)
    config = preset("kl2").replace(kda_layers=kda, full_attn_layers=full)
    p = plan(config, context="1M")
    assert (p.nbytes("cache"), p.longest_context(4 * 10**9)) == (0, None)


# -- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "context must be a whole number from 1"),
        ({"context": "1MB"}, "context must be a whole number"),
        ({"context": "1.0000001K"}, "context must be a whole number"),
        ({"context": 10**13}, "context must be a whole number from 1 to 1,000,000,000,000"),
        ({"context": True}, "context must be a whole number"),
        ({"batch": 0}, "batch must be a whole number from 1"),
        ({"tp": 9}, "tp must divide the 96 heads of each KDA layer, got 9"),
        ({"ep": 5}, "ep must divide the 896 routed experts, got 5"),
        ({"tp": 3, "ep": 7}, "ep must be a multiple of tp"),
        ({"hardware": "abacus"}, "hardware must be one of h100, .* or measured, got 'abacus'"),
        ({"memory": "80G"}, "memory must be bytes with their unit"),
        ({"cache": "folded"}, "cache must be one of latent, expanded, got 'folded'"),
        ({"weights": "int3"}, "weights must be one of as-stored"),
        ({"window": "square"}, "window must be one of ring, full"),
        ({"depth": 3}, "plan has no option depth"),
    ],
)
def test_bad_options_are_one_sentence(options, message):
    with pytest.raises(InputError, match=message):
        plan("kimi-k3", **{"context": "1K", **options})


def test_bad_dtypes_are_one_sentence():
    for name in ("cache_dtype", "state_dtype"):
        with pytest.raises(ConfigError, match=f"{name} must be one of .*, got 'foo'; choose one"):
            plan("kimi-k3", context=1, **{name: "foo"})


def test_unknown_model_is_named():
    with pytest.raises(InputError, match="got 'kimi-k9'"):
        plan("kimi-k9", context=1)

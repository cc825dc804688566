"""The closed formulas: published totals, and shapes counted one by one."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.config import HybridConfig, preset
from interlace.config import sizes as z
from interlace.errors import ConfigError

KIMI_K3, KIMI_LINEAR = preset("kimi-k3"), preset("kimi-linear-48b")
MIB = 2**20

# every axis different
K3_LIKE = HybridConfig(
    vocab_size=211,
    hidden_size=40,
    num_hidden_layers=5,
    kda_layers=(1, 2, 3),
    full_attn_layers=(4, 5),
    num_attention_heads=3,
    qk_nope_head_dim=10,
    qk_rope_head_dim=6,
    v_head_dim=14,
    kv_lora_rank=22,
    q_lora_rank=12,
    mla_use_output_gate=True,
    kda_num_heads=5,
    kda_head_dim=18,
    short_conv_kernel_size=3,
    gate_lower_bound=-5.0,
    use_full_rank_gate=True,
    intermediate_size=70,
    hidden_act="situ",
    num_experts=8,
    num_experts_per_token=2,
    moe_intermediate_size=64,
    num_shared_experts=2,
    first_k_dense_replace=1,
    routed_expert_hidden_size=32,
    latent_moe_use_norm=True,
    attn_res_block_size=2,
)
LINEAR_LIKE = K3_LIKE.replace(
    model_type="kimi_linear",
    q_lora_rank=None,
    mla_use_output_gate=False,
    gate_lower_bound=None,
    use_full_rank_gate=False,
    hidden_act="silu",
    routed_expert_hidden_size=None,
    latent_moe_use_norm=False,
    attn_res_block_size=None,
)


def tensors(c):
    """Shapes and whether float32, written out from the tables of spec sections 4 to 8."""
    k3 = c.published_class == "kimi_k3"
    hidden, width, K = c.hidden_size, c.kda_num_heads * c.kda_head_dim, c.kda_head_dim
    yield "embed_tokens", (c.vocab_size, hidden), False
    yield "lm_head", (c.vocab_size, hidden), False
    yield "norm", (hidden,), False
    if c.attn_res_block_size:
        yield "output_attn_res_norm", (hidden,), False
        yield "output_attn_res_proj", (1, hidden), False
    for i in range(c.num_hidden_layers):
        yield "input_layernorm", (hidden,), False
        yield "post_attention_layernorm", (hidden,), False
        if c.attn_res_block_size:
            for part in ("self_attention", "mlp"):
                yield f"{part}_res_norm", (hidden,), False
                yield f"{part}_res_proj", (1, hidden), False
        if i + 1 in c.full_attn_layers:
            H, V, R = c.num_attention_heads, c.v_head_dim, c.kv_lora_rank
            query = H * (c.qk_nope_head_dim + c.qk_rope_head_dim)
            if c.q_lora_rank:
                yield "q_a_proj", (c.q_lora_rank, hidden), False
                yield "q_a_layernorm", (c.q_lora_rank,), False
                yield "q_b_proj", (query, c.q_lora_rank), False
            else:
                yield "q_proj", (query, hidden), False
            yield "kv_a_proj_with_mqa", (R + c.qk_rope_head_dim, hidden), False
            yield "kv_a_layernorm", (R,), False
            yield "kv_b_proj", (H * (c.qk_nope_head_dim + V), R), False
            if c.mla_use_output_gate:
                yield "g_proj", (H * V, hidden), False
            yield "o_proj", (hidden, H * V), False
        else:
            for name in "qkv":
                yield f"{name}_proj", (width, hidden), False
                yield f"{name}_conv1d", (width, 1, c.short_conv_kernel_size), k3
            yield "f_a_proj", (K, hidden), False
            yield "f_b_proj", (width, K), False
            yield "b_proj", (c.kda_num_heads, hidden), False
            yield "A_log", (max(c.kda_num_heads, K),) if k3 else (1, 1, c.kda_num_heads, 1), True
            yield "dt_bias", (width,), True
            if c.use_full_rank_gate:
                yield "g_proj", (width, hidden), False
            else:
                yield "g_a_proj", (K, hidden), False
                yield "g_b_proj", (width, K), False
            yield "o_norm", (K,), k3
            yield "o_proj", (hidden, width), False
        if i < c.first_k_dense_replace:
            for name in ("gate_proj", "up_proj", "down_proj"):
                yield name, (c.intermediate_size, hidden), False
            continue
        yield "gate", (c.num_experts, hidden), False
        yield "e_score_correction_bias", (c.num_experts,), k3
        latent = c.routed_expert_hidden_size or hidden
        for _ in range(c.num_experts):
            for name in ("w1", "w2", "w3"):
                yield f"experts.{name}", (c.moe_intermediate_size, latent), False
        for name in ("gate_proj", "up_proj", "down_proj"):
            shared = c.moe_intermediate_size * c.num_shared_experts
            yield f"shared.{name}", (shared, hidden), False
        if c.routed_expert_hidden_size:
            yield "routed_expert_down_proj", (latent, hidden), False
            yield "routed_expert_up_proj", (hidden, latent), False
            if c.latent_moe_use_norm:
                yield "routed_expert_norm", (latent,), False


@pytest.mark.parametrize("config", [K3_LIKE, LINEAR_LIKE], ids=["kimi_k3", "kimi_linear"])
def test_stored_parameters_are_the_tables_of_the_spec(config):
    listed = list(tensors(config))
    assert z.stored_parameters(config) == sum(math.prod(shape) for _, shape, _ in listed)
    heads = config.kda_num_heads * config.num_kda_layers
    on_disk = sum(math.prod(shape) for name, shape, _ in listed if name == "A_log")
    assert z.live_parameters(config) == z.stored_parameters(config) - on_disk + heads
    each = {True: 4, False: 2}
    assert z.checkpoint_bytes(config) == sum(math.prod(s) * each[wide] for _, s, wide in listed)
    assert z.checkpoint_bytes(config.replace(dtype="float32")) == 4 * z.stored_parameters(config)
    # what is float32 in the layout stays so in memory, and the router's bias in any layout
    wide = sum(
        math.prod(shape)
        for name, shape, is_wide in listed
        if is_wide or name == "e_score_correction_bias"
    )
    wide += heads - on_disk
    assert z.weight_bytes(config) == 2 * z.live_parameters(config) + 2 * wide
    assert z.weight_bytes(config, "float64") == 8 * z.live_parameters(config)


def test_tied_embeddings_are_counted_once():
    tied = LINEAR_LIKE.replace(tie_word_embeddings=True)
    assert z.stored_parameters(LINEAR_LIKE) - z.stored_parameters(tied) == 211 * 40
    assert z.activated_parameters(tied, embedding=False) == z.activated_parameters(tied)


def test_published_totals_to_the_last_parameter():
    assert z.stored_parameters(KIMI_LINEAR) == z.live_parameters(KIMI_LINEAR) == 49_122_681_728
    assert z.stored_parameters(KIMI_K3) == 2_779_484_478_208
    assert z.live_parameters(KIMI_K3) == 2_779_484_476_000
    assert z.kda_parameters(KIMI_K3) == 443_740_416
    assert z.kda_parameters(KIMI_K3, stored=False) == 443_740_384
    assert z.mla_parameters(KIMI_K3) == 232_196_096
    assert round(z.activated_parameters(KIMI_K3) / 1e9, 2) == 105.36
    assert round(z.activated_parameters(KIMI_K3, embedding=False) / 1e9, 2) == 104.19


def test_packed_experts_take_half_a_byte_and_a_scale():
    routed = z.parameter_groups(KIMI_K3)["routed_experts"]
    assert routed == 247_296 * 3072 * 3584
    packed = 247_296 * 3072 * (1792 + 112)
    unpacked = KIMI_K3.replace(quantization=None)
    assert z.checkpoint_bytes(unpacked) - z.checkpoint_bytes(KIMI_K3) == 2 * routed - packed


def test_latent_cache_counts_only_global_layers_and_one_latent():
    assert z.latent_bytes_per_token(KIMI_K3) == 27_648
    assert z.latent_cache_bytes(KIMI_K3, 1, 2**20) == 27 * 2**30
    assert z.latent_bytes_per_token(KIMI_LINEAR) == 8_064
    assert z.latent_cache_bytes(KIMI_LINEAR, 3, 5, "float32") == 3 * 5 * 2 * 8_064


def test_delta_state_of_one_sequence():
    layers = 69
    assert z.delta_matrix_bytes(KIMI_K3, 1) == layers * 6 * MIB
    assert z.conv_window_bytes(KIMI_K3, 1) == layers * 221_184
    assert round(z.delta_state_bytes(KIMI_K3, 1) / MIB, 2) == 428.55
    assert round(z.delta_state_bytes(KIMI_K3, 1, "float32") / 1e6, 1) == 464.6
    assert z.delta_matrix_bytes(KIMI_LINEAR, 1) == 40 * MIB
    assert z.conv_window_bytes(KIMI_LINEAR, 1) == 1_474_560
    assert z.delta_state_bytes(KIMI_LINEAR, 4) == 4 * z.delta_state_bytes(KIMI_LINEAR, 1)


def test_b75_expanded_and_latent_cache_are_two_numbers():
    mid = preset("mid")
    assert z.latent_cache_bytes(mid, 1, 10) == 2 * 10 * 576 * 2
    assert z.expanded_cache_bytes(mid, 1, 10) == 2 * 10 * 16 * (128 + 64 + 128) * 2
    assert z.expanded_cache_bytes(KIMI_K3, 1, 1) == 24 * 96 * 320 * 2


@settings(deadline=None)  # the first call imports what the others find
@given(
    tokens=st.integers(0, 10**7),
    batch=st.integers(1, 9),
    dtype=st.sampled_from(["bfloat16", "float32"]),
    slack=st.floats(0, 0.999),
)
def test_b81_state_is_paid_once_and_capacity_inverts_the_sum(tokens, batch, dtype, slack):
    used = z.cache_bytes(KIMI_LINEAR, batch, tokens, dtype)
    state = z.cache_bytes(KIMI_LINEAR, batch, 0, dtype)
    assert state == batch * z.delta_state_bytes(KIMI_LINEAR, 1, dtype)
    per_token = batch * z.latent_bytes_per_token(KIMI_LINEAR, dtype)
    assert used == state + tokens * per_token
    more = used + int(slack * per_token)
    assert z.capacity_within(KIMI_LINEAR, more, batch, dtype) == tokens


def test_capacity_of_a_budget_below_the_state_and_of_a_model_without_latents():
    with pytest.raises(ConfigError, match="must cover the state of 43417600 bytes, got 7"):
        z.capacity_within(KIMI_LINEAR, 7)
    kda, full = HybridConfig.layout(5, None, final_global=False)
    no_mla = LINEAR_LIKE.replace(kda_layers=kda, full_attn_layers=full)
    assert z.capacity_within(no_mla, 10**9) is None


def test_b83_unknown_dtype_is_refused_wherever_it_counts():
    for call in (
        lambda: z.dtype_bytes("foo"),
        lambda: z.latent_cache_bytes(KIMI_K3, 1, 8, "foo"),
        lambda: z.expanded_cache_bytes(KIMI_K3, 1, 8, "foo"),
        lambda: z.delta_state_bytes(KIMI_K3, 1, "foo"),
        lambda: z.weight_bytes(KIMI_K3, "foo"),
    ):
        with pytest.raises(ConfigError, match=r"dtype must be one of float64, .*, got 'foo'"):
            call()
    with pytest.raises(ConfigError, match="capacity must be an integer of at least 0, got -1"):
        z.latent_cache_bytes(KIMI_K3, 1, -1)


def test_b79_decimal_and_binary_units_are_never_mixed():
    assert z.describe_bytes(80 * 10**9) == "80.0 GB (74.5 GiB)"
    assert z.describe_bytes(27 * 2**30) == "29.0 GB (27.0 GiB)"
    assert z.describe_bytes(221_184) == "221.2 kB (216.0 KiB)"
    assert z.describe_bytes(999) == "999 B"
    assert z.describe_bytes(5 * 10**15) == "5000.0 TB (4547.5 TiB)"


@given(capacity=st.integers(0, 10**6), needed=st.integers(0, 10**6))
def test_growth_is_enough_and_amortised(capacity, needed):
    grown = z.grow_capacity(capacity, needed)
    if needed <= capacity:
        assert grown == capacity
        return
    assert grown >= needed
    assert grown % z.CACHE_STEP == 0
    assert grown >= 1.5 * capacity - 1
    assert grown < max(needed, 1.5 * capacity) + z.CACHE_STEP


def test_token_by_token_growth_copies_a_linear_amount():
    capacity = copied = 0
    for tokens in range(1, 4_001):
        grown = z.grow_capacity(capacity, tokens)
        copied += (tokens - 1) if grown != capacity else 0
        capacity = grown
    assert copied < 3 * 4_000
    assert capacity < 1.5 * 4_000 + z.CACHE_STEP

"""Closed formulas for the size of every weight, cache and state of a model.

The one place that says how large a part is: caches allocate by these numbers, checkpoints and the
command line report them, and a test walks real modules and holds each formula to the last element.
Shapes are those of spec sections 4 to 8; what a call needs while it runs is in
`interlace.config.activations`.
"""

from interlace.config.hybrid import HybridConfig, check_int
from interlace.errors import ConfigError

DTYPE_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number, by the dtype's name."""

CACHE_STEP = 64
"""A growing cache holds a multiple of this many tokens."""

MXFP4 = "mxfp4-pack-quantized"
"""How a published config calls packed experts."""

MXFP4_GROUP = 32
"""Weights of a row that share a scale."""


def dtype_bytes(dtype: str) -> int:
    """Bytes of one number of this dtype.

    Raises:
        ConfigError: a name that is not in `DTYPE_BYTES`; guessing would make a size that "fits".
    """
    if dtype not in DTYPE_BYTES:
        raise ConfigError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {dtype!r}")
    return DTYPE_BYTES[dtype]


# -- parameters


def a_log_length(config: HybridConfig) -> int:
    """Entries of `A_log` on disk: one per head, and in K3's layout at least one per head channel.

    K3 stores 128 for 96 heads, with zeros behind (spec section 5).
    """
    if config.published_class == "kimi_k3":
        return max(config.kda_num_heads, config.kda_head_dim)
    return config.kda_num_heads


def mla_parts(config: HybridConfig) -> dict[str, int]:
    """Parameters of one Gated MLA mixer by projection (spec section 4)."""
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    query, value = heads * config.qk_head_dim, heads * config.v_head_dim
    if config.q_lora_rank is None:
        parts = {"q": hidden * query}
    else:
        low = config.q_lora_rank
        parts = {"q_a": low * hidden, "q_norm": low, "q_b": query * low}
    parts["kv_a"] = hidden * config.latent_dim
    parts["kv_norm"] = rank
    parts["kv_b"] = rank * heads * (config.qk_nope_head_dim + config.v_head_dim)
    if config.mla_use_output_gate:
        parts["gate"] = hidden * value
    return {**parts, "o": hidden * value}


def mla_parameters(config: HybridConfig) -> int:
    """One Gated MLA mixer."""
    return sum(mla_parts(config).values())


def kda_parts(config: HybridConfig, stored: bool = True) -> dict[str, int]:
    """Parameters of one KDA mixer by projection (spec section 5).

    Args:
        config: the model.
        stored: count `A_log` as long as on disk; otherwise one entry per head.
    """
    hidden, heads, head_dim = config.hidden_size, config.kda_num_heads, config.kda_head_dim
    width = config.kda_dim
    parts = {
        "qkv": 3 * width * hidden,
        "conv": 3 * width * config.short_conv_kernel_size,
        "f_a": head_dim * hidden,  # decay
        "f_b": head_dim * width,
        "dt_bias": width,
        "A_log": a_log_length(config) if stored else heads,
        "beta": hidden * heads,
    }
    if config.use_full_rank_gate:
        parts["gate"] = hidden * width
    else:
        parts["g_a"], parts["g_b"] = head_dim * hidden, head_dim * width
    return {**parts, "o_norm": head_dim, "o": width * hidden}


def float32_parts(config: HybridConfig) -> tuple[str, ...]:
    """Which of `kda_parts` stay in float32 whatever the dtype of the model (spec section 9)."""
    wide = ("dt_bias", "A_log")
    return (*wide, "conv", "o_norm") if config.published_class == "kimi_k3" else wide


def kda_parameters(config: HybridConfig, stored: bool = True) -> int:
    """One KDA mixer; arguments as of `kda_parts`."""
    return sum(kda_parts(config, stored).values())


def expert_width(config: HybridConfig) -> int:
    """Width that routed experts read and write: the latent's where there is one."""
    return config.routed_expert_hidden_size or config.hidden_size


def expert_parameters(config: HybridConfig) -> int:
    """One routed expert (spec section 7.3); 0 in a dense model."""
    return 3 * expert_width(config) * (config.moe_intermediate_size or 0)


def packs_experts(config: HybridConfig) -> bool:
    """Whether the routed experts are MXFP4, on disk and in memory (spec section 7.4)."""
    return config.num_experts is not None and (config.quantization or {}).get("format") == MXFP4


def packed_expert_bytes(config: HybridConfig) -> int:
    """One routed expert in MXFP4: two codes a byte, and one scale byte per group."""
    numbers = expert_parameters(config)
    return numbers // 2 + numbers // MXFP4_GROUP


def layer_parameters(config: HybridConfig, layer_idx: int, stored: bool = True) -> dict[str, int]:
    """Parameters of one layer by group; a group that the layer lacks is not in the result.

    Args:
        config: the model.
        layer_idx: 0-based position.
        stored: as on disk (see `kda_parameters`) or as they live in memory.
    """
    hidden = config.hidden_size
    groups = {"norms": 2 * hidden}
    if config.is_global(layer_idx):
        groups["mla"] = mla_parameters(config)
    else:
        groups["kda"] = kda_parameters(config, stored)
    if config.attn_res_block_size is not None:
        groups["attention_residuals"] = 4 * hidden  # norm and query, before mixer and feed-forward
    if not config.is_moe(layer_idx):
        groups["dense_ffn"] = 3 * hidden * config.intermediate_size
        return groups
    experts = config.num_experts or 0
    groups["router"] = experts * (hidden + 1)  # and the bias that only selects
    groups["routed_experts"] = experts * expert_parameters(config)
    if config.num_shared_experts:
        shared = config.num_shared_experts * (config.moe_intermediate_size or 0)
        groups["shared_experts"] = 3 * hidden * shared
    if config.routed_expert_hidden_size is not None:
        latent = config.routed_expert_hidden_size
        norm = latent if config.latent_moe_use_norm else 0
        groups["latent_experts"] = 2 * hidden * latent + norm
    return groups


def parameter_groups(config: HybridConfig, stored: bool = True) -> dict[str, int]:
    """Parameters of the model by group; they add up to the total.

    Args:
        config: the model.
        stored: as on disk, or (False) as they live in memory.
    """
    embedding = config.vocab_size * config.hidden_size
    total = {
        "embedding": embedding,
        "head": 0 if config.tie_word_embeddings else embedding,
        "final_norm": config.hidden_size,
    }
    for layer_idx in range(config.num_hidden_layers):
        for name, count in layer_parameters(config, layer_idx, stored).items():
            total[name] = total.get(name, 0) + count
    if config.attn_res_block_size is not None:
        total["attention_residuals"] += 2 * config.hidden_size  # the last mix
    return total


def stored_parameters(config: HybridConfig) -> int:
    """Parameters in a checkpoint, padding of `A_log` included."""
    return sum(parameter_groups(config).values())


def live_parameters(config: HybridConfig) -> int:
    """Parameters that the model computes with."""
    return sum(parameter_groups(config, stored=False).values())


def activated_parameters(config: HybridConfig, embedding: bool = True) -> int:
    """Parameters that one token uses: of the routed experts only those it visits.

    Args:
        config: the model.
        embedding: count the input embedding, of which a token reads one row.
    """
    idle = (config.num_experts or 0) - (config.num_experts_per_token or 0)
    unused = idle * expert_parameters(config) * config.num_moe_layers
    if not embedding and not config.tie_word_embeddings:
        unused += config.vocab_size * config.hidden_size
    return stored_parameters(config) - unused


def float32_parameters(config: HybridConfig) -> int:
    """Live parameters that stay in float32 whatever the dtype: `float32_parts`, router's bias."""
    parts = kda_parts(config, stored=False)
    kda = sum(parts[name] for name in float32_parts(config))
    return config.num_kda_layers * kda + config.num_moe_layers * (config.num_experts or 0)


def weight_bytes(config: HybridConfig, dtype: str | None = None) -> int:
    """Bytes of a loaded model's weights, routed experts packed where the config packs them.

    Args:
        config: the model; with `quantization=None` where packed experts were expanded.
        dtype: of the weights; the config's when None. `float32_parameters` are never narrower
            than float32.

    Raises:
        ConfigError: an unknown dtype.
    """
    each = dtype_bytes(dtype or config.dtype)
    total = live_parameters(config) * each + float32_parameters(config) * (max(each, 4) - each)
    return total - _saved_by_packing(config, each)


def expert_slots(config: HybridConfig, nbytes: int | None = None) -> int:
    """Experts that are kept in memory where all lie on disk.

    Args:
        config: a model with packed experts.
        nbytes: to spend on them; when None, on as many as one token visits.

    Raises:
        ConfigError: too few bytes for one expert.
    """
    every = config.num_moe_layers * (config.num_experts or 0)
    if nbytes is None:
        return min(every, config.num_moe_layers * (config.num_experts_per_token or 0))
    one = packed_expert_bytes(config)
    if nbytes < one:
        raise ConfigError(
            f"the cache of experts must hold one of {describe_bytes(one)} at least, got "
            f"{describe_bytes(nbytes)}; give it more"
        )
    return min(every, nbytes // one)


def weight_bytes_beside_disk(
    config: HybridConfig, dtype: str | None = None, expert_cache: int | None = None
) -> int:
    """As `weight_bytes`, where packed experts stay on disk: in memory are only those of the slots.

    Args:
        config: a model with packed experts.
        dtype: of the other weights; the config's when None.
        expert_cache: bytes for slots; see `expert_slots`.

    Raises:
        ConfigError: an unknown dtype, or too few bytes for one expert.
    """
    on_disk = config.num_moe_layers * (config.num_experts or 0)
    kept = expert_slots(config, expert_cache) - on_disk
    return weight_bytes(config, dtype) + kept * packed_expert_bytes(config)


def checkpoint_bytes(config: HybridConfig) -> int:
    """Bytes of all tensors in a checkpoint of the published layout and dtypes, headers aside.

    float32 on disk are `A_log` and `dt_bias`, in K3 also the convolutions, `o_norm` and the router
    bias; K3's routed experts are packed MXFP4 where the config says so (spec sections 5 and 7).
    """
    each = dtype_bytes(config.dtype)
    parts = kda_parts(config)
    wide = sum(parts[name] for name in float32_parts(config))
    bias = (config.num_experts or 0) if config.published_class == "kimi_k3" else 0
    wide = wide * config.num_kda_layers + bias * config.num_moe_layers
    total = stored_parameters(config) * each + wide * (max(each, 4) - each)
    return total - _saved_by_packing(config, each)


def _saved_by_packing(config: HybridConfig, each: int) -> int:
    """By how much packed experts are smaller than the same with `each` bytes a number."""
    if not packs_experts(config):
        return 0
    one = expert_parameters(config) * each - packed_expert_bytes(config)
    return config.num_moe_layers * (config.num_experts or 0) * one


# -- caches and states


def expanded_numbers(config: HybridConfig) -> int:
    """Numbers per token and Gated MLA layer if keys and values were kept for each head."""
    return config.num_attention_heads * (config.qk_head_dim + config.v_head_dim)


def delta_numbers(config: HybridConfig) -> int:
    """Numbers of the state of one sequence in one KDA layer."""
    return config.kda_dim * config.kda_head_dim


def window_numbers(config: HybridConfig) -> int:
    """Numbers of the three convolution windows of one sequence in one KDA layer."""
    return 3 * (config.short_conv_kernel_size - 1) * config.kda_dim


def latent_bytes_per_token(config: HybridConfig, dtype: str | None = None) -> int:
    """Bytes that one more token of capacity costs, over all Gated MLA layers."""
    return config.num_global_layers * config.latent_dim * dtype_bytes(dtype or config.dtype)


def latent_cache_bytes(
    config: HybridConfig, batch: int, capacity: int, dtype: str | None = None
) -> int:
    """Bytes of the latent caches `[B, capacity, R + P]` of all Gated MLA layers.

    Args:
        config: the model.
        batch: rows.
        capacity: tokens allocated per row, not tokens written.
        dtype: of the latents; the config's when None.

    Raises:
        ConfigError: a negative count or an unknown dtype.
    """
    _check_counts(batch=batch, capacity=capacity)
    return batch * capacity * latent_bytes_per_token(config, dtype)


def expanded_cache_bytes(
    config: HybridConfig, batch: int, tokens: int, dtype: str | None = None
) -> int:
    """Bytes that the same tokens would take as keys and values per head, which nothing here stores.

    Args:
        config: the model.
        batch: rows.
        tokens: tokens per row.
        dtype: of keys and values; the config's when None.

    Raises:
        ConfigError: a negative count or an unknown dtype.
    """
    _check_counts(batch=batch, tokens=tokens)
    each = expanded_numbers(config) * dtype_bytes(dtype or config.dtype)
    return config.num_global_layers * batch * tokens * each


def delta_matrix_bytes(config: HybridConfig, batch: int) -> int:
    """Bytes of the states `[B, H, K, V]`, float32, of all KDA layers; here V is K."""
    _check_counts(batch=batch)
    return config.num_kda_layers * batch * delta_numbers(config) * 4


def conv_window_bytes(config: HybridConfig, batch: int, dtype: str | None = None) -> int:
    """Bytes of the last W - 1 pre-convolution q, k and v of all KDA layers."""
    _check_counts(batch=batch)
    each = window_numbers(config) * dtype_bytes(dtype or config.dtype)
    return config.num_kda_layers * batch * each


def delta_state_bytes(config: HybridConfig, batch: int, dtype: str | None = None) -> int:
    """Bytes of everything that KDA layers keep, whatever the context.

    Args:
        config: the model.
        batch: rows.
        dtype: of the convolution windows; the config's when None. The state itself is float32.

    Raises:
        ConfigError: a negative count or an unknown dtype.
    """
    return delta_matrix_bytes(config, batch) + conv_window_bytes(config, batch, dtype)


def snapshot_bytes(
    config: HybridConfig, batch: int, snapshots: int, dtype: str | None = None
) -> int:
    """Bytes of the snapshots that a cache keeps to be trimmed to: of each, the KDA states alone.

    Args:
        config: the model.
        batch: rows.
        snapshots: how many are kept.
        dtype: of the convolution windows; the config's when None.

    Raises:
        ConfigError: a negative count or an unknown dtype.
    """
    _check_counts(snapshots=snapshots)
    return snapshots * delta_state_bytes(config, batch, dtype)


def cache_bytes(config: HybridConfig, batch: int, capacity: int, dtype: str | None = None) -> int:
    """Bytes that survive between calls: latent caches and KDA states. a + b * capacity."""
    latent = latent_cache_bytes(config, batch, capacity, dtype)
    return latent + delta_state_bytes(config, batch, dtype)


def capacity_within(
    config: HybridConfig, budget: int, batch: int = 1, dtype: str | None = None
) -> int | None:
    """Tokens per row whose caches fit in `budget` bytes; None where no number of them matters.

    The inverse of `cache_bytes`: the state is paid once, not per token.

    Raises:
        ConfigError: a budget below the state alone, a count below 1, or an unknown dtype.
    """
    check_int("batch", batch, 1)
    left = budget - delta_state_bytes(config, batch, dtype)
    if left < 0:
        raise ConfigError(
            f"the budget must cover the state of {budget - left} bytes, got {budget}; raise it or "
            "lower the batch"
        )
    per_token = batch * latent_bytes_per_token(config, dtype)
    return left // per_token if per_token else None


def grow_capacity(capacity: int, needed: int) -> int:
    """The capacity that a cache takes when `needed` tokens must fit.

    Half as much again, so that n tokens copy O(n) in all, and a multiple of `CACHE_STEP`. A cache
    that is large enough already stays as it is.

    Raises:
        ConfigError: a negative count.
    """
    _check_counts(capacity=capacity, needed=needed)
    if needed <= capacity:
        return capacity
    wanted = max(needed, capacity + capacity // 2)
    return -(-wanted // CACHE_STEP) * CACHE_STEP


def describe_bytes(count: int) -> str:
    """Bytes for a reader, decimal and binary side by side: `80.0 GB (74.5 GiB)`."""
    if count < 1000:
        return f"{count} B"
    power = min(4, (len(str(count)) - 1) // 3)
    decimal, binary = "kMGT"[power - 1], "KMGT"[power - 1]
    return f"{count / 1000**power:.1f} {decimal}B ({count / 1024**power:.1f} {binary}iB)"


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        check_int(name, count, 0)

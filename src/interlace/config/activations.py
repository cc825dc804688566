"""What a call needs while it runs, over weights and caches: an upper bound as a closed formula.

A model works through its layers one after the other and frees each one's tensors, so the peak is
the residual stream plus the largest single phase: a KDA mixer, a Gated MLA mixer, a dense
feed-forward, a mixture of experts, a mixture of streams, or the head. Each phase is a list of named
terms, so that a bound which is too high or too low can be traced to one of them. No gradients are
kept; training has its own needs.

Letters as in the legend: B rows, T tokens of the call, M tokens in memory, e bytes per number.
"""

from interlace.config.hybrid import HybridConfig, check_int
from interlace.config.sizes import dtype_bytes, expert_width

QUERY_BLOCK = 512
"""Queries that attention takes at once, at most."""

KEY_BLOCK = 1024
"""Cached tokens that attention takes at once, at most."""

HEAD_BLOCK = 4
"""Heads whose half of the up-projection attention casts at once, at most."""

DELTA_CHUNK = 64
"""Tokens that the chunked delta rule takes at once; one state is kept for each."""

DELTA_TILE = 16
"""Tokens of one tile inside such a chunk."""

_F32 = 4


def decode_activation_bytes(
    config: HybridConfig, batch: int, memory: int, dtype: str | None = None
) -> int:
    """Bytes that a decoding step needs: one token for each of `batch` rows.

    Args:
        config: the model.
        batch: rows B.
        memory: tokens M that each row remembers, the new one included.
        dtype: of weights and activations; the config's when None.

    Raises:
        ConfigError: a count out of range or an unknown dtype.
    """
    return activation_bytes(config, batch, 1, memory, dtype)


def prefill_activation_bytes(
    config: HybridConfig,
    batch: int,
    tokens: int,
    memory: int,
    dtype: str | None = None,
    last_only: bool = True,
) -> int:
    """Bytes that a prefill chunk of `tokens` per row needs.

    Args:
        config: the model.
        batch: rows B.
        tokens: tokens T of the chunk.
        memory: tokens M that each row remembers, those of the chunk included.
        dtype: of weights and activations; the config's when None.
        last_only: logits of the last token alone.

    Raises:
        ConfigError: a count out of range or an unknown dtype.
    """
    return activation_bytes(config, batch, tokens, memory, dtype, last_only)


def activation_bytes(
    config: HybridConfig,
    batch: int,
    tokens: int,
    memory: int,
    dtype: str | None = None,
    last_only: bool = True,
) -> int:
    """The residual stream and the largest phase of `activation_phases`; arguments as there."""
    phases = activation_phases(config, batch, tokens, memory, dtype, last_only)
    always = sum(phases.pop("residual").values())
    return always + max(sum(terms.values()) for terms in phases.values())


def activation_phases(
    config: HybridConfig,
    batch: int,
    tokens: int,
    memory: int,
    dtype: str | None = None,
    last_only: bool = True,
) -> dict[str, dict[str, int]]:
    """Bytes of each term of each phase; a phase that the model lacks is not in the result.

    Args:
        config: the model.
        batch: rows B.
        tokens: tokens T of the call, per row.
        memory: tokens M that each row remembers after it.
        dtype: of weights and activations; the config's when None.
        last_only: logits of the last token alone.

    Raises:
        ConfigError: a count out of range or an unknown dtype.
    """
    check_int("batch", batch, 1)
    check_int("tokens", tokens, 1)
    check_int("memory", memory, tokens)
    each = dtype_bytes(dtype or config.dtype)
    rows = batch * tokens
    wide = max(each, _F32)
    phases = {
        "residual": {
            # before and after the layer, and what its norm hands to the mixer
            "stream": 3 * rows * config.hidden_size * each,
            # a norm squares and scales in float32
            "norm": 2 * rows * config.hidden_size * wide,
        },
        "head": _head(config, batch, tokens, each, last_only),
    }
    if config.attn_res_block_size is not None:
        phases["residual"] |= _bank(config, rows, each)
        phases["mixing"] = _mixing(config, rows, each)
    if config.num_kda_layers:
        phases["kda"] = _kda(config, batch, tokens, each)
    if config.num_global_layers:
        phases["mla"] = _mla(config, batch, tokens, memory, each)
    if config.num_moe_layers < config.num_hidden_layers:
        phases["dense"] = _gated_mlp(config, config.intermediate_size, rows, each)
    if config.num_moe_layers:
        phases["experts"] = _experts(config, rows, each)
    return phases


def _kda(config: HybridConfig, batch: int, tokens: int, each: int) -> dict[str, int]:
    heads, key = config.kda_num_heads, config.kda_head_dim
    rows, wide = batch * tokens, max(each, _F32)
    numbers = rows * config.kda_dim
    state = batch * heads * key * key * wide
    tile_rows = -(-min(tokens, DELTA_CHUNK) // DELTA_TILE) * batch * heads
    terms = {
        # q, k, v after the convolution; decay logits; output; its gate; input of o_proj
        "projections": 7 * numbers * each,
        # the same with padding silenced
        "silenced": 3 * numbers * each + numbers * wide,
        # log-decay, and the float32 norms of q, k or output while they are made
        "float32": 4 * numbers * wide,
        # beta: logit and value
        "beta": 2 * rows * heads * wide,
        # hidden of the low-rank pairs
        "low_rank": 2 * rows * key * each,
        "output": rows * config.hidden_size * each,
        # the state that is written while the old one is still there
        "states": 2 * state,
    }
    if tokens > 1:
        # per tile of a chunk: scaled rows and columns with their decay factors (19 K), values
        # (5 V), scores and their inverse (8 C), written part, transition and running state
        tile = DELTA_TILE * (19 * key + 5 * key + 8 * DELTA_TILE) + 4 * key * key
        terms["chunk"] = tile_rows * tile * wide
        terms["chunk_states"] = -(-tokens // DELTA_CHUNK) * state
    return terms


def _mla(config: HybridConfig, batch: int, tokens: int, memory: int, each: int) -> dict[str, int]:
    heads, value = config.num_attention_heads, config.v_head_dim
    rows, wide = batch * tokens, max(each, _F32)
    query = rows * heads * config.qk_head_dim
    queries, keys = min(tokens, QUERY_BLOCK), min(memory, KEY_BLOCK)
    absorbed = rows * heads * config.latent_dim
    expanded = heads * (config.qk_head_dim + value)
    nope, rank = config.qk_nope_head_dim, config.kv_lora_rank
    up = heads * (nope + value) * rank
    folding = min(heads, HEAD_BLOCK) * max(nope, value) * rank * wide
    terms = {
        # q in the model's dtype and once in float32
        "query": query * (each + wide) + rows * (config.q_lora_rank or 0) * 2 * each,
        # latent before and after its norm, joined with the shared key
        "latent": 3 * rows * config.latent_dim * each,
        # scores of a block, and their exponentials
        "scores": 2 * batch * heads * queries * keys * wide,
        # the block of latents in float32
        "latent_block": batch * keys * config.latent_dim * wide,
        # running maximum, sum and output in float32, old and new
        "output": 2 * rows * heads * (value + 2) * wide,
        # the gate, its product with the float32 output, and that in the model's dtype
        "gate": rows * heads * value * (2 * each + wide) if config.mla_use_output_gate else 0,
        "o_proj": rows * heads * value * each + rows * config.hidden_size * each,
        # half of kv_b_proj for a few heads in float32, for the fold; both halves joined, for the
        # rebuilding
        "up_projection": folding if tokens == 1 else max(folding, up * each),
    }
    # folded query and latent output (few queries), or keys and values rebuilt for a block
    fold = (2 * absorbed + batch * queries * heads * config.kv_lora_rank) * wide
    rebuilt = batch * keys * expanded * (each + wide)
    if tokens == 1:
        terms["folded"] = fold
    else:
        folded = 0 if tokens > QUERY_BLOCK else fold
        terms["folded_or_rebuilt"] = max(folded, rebuilt)
    return terms


def _gated_mlp(config: HybridConfig, width: int, rows: int, each: int) -> dict[str, int]:
    return {
        # gate, up, product
        "hidden": 3 * rows * width * each,
        "float32": rows * width * _activation(config, each),
        "output": rows * config.hidden_size * each,
    }


def _activation(config: HybridConfig, each: int) -> int:
    """Bytes per number that the gated activation takes in float32 on top of what it is given."""
    # SiTU: the gate, its tanh, and up while it is cast, divided and bent
    return (5 if config.hidden_act == "situ" else 2) * max(each, _F32)


def _bank(config: HybridConfig, rows: int, each: int) -> dict[str, int]:
    """What Attention Residuals hold through all layers."""
    layers, size, wide = config.num_hidden_layers, config.attn_res_block_size, max(each, _F32)
    assert size is not None
    queries = 2 * layers * config.hidden_size * wide
    if size == 0:
        return {"bank": (2 * layers + 1) * rows * config.hidden_size * each, "queries": queries}
    blocks = -(-layers // size)
    return {
        "queries": queries,
        # the embedding and the finished blocks in float32; the live stream beside what is read
        "bank": (blocks * wide + each) * rows * config.hidden_size,
        # scores of a block's reads and their shares, or the shares of this block and of the last
        "shares": (2 * blocks + 4) * rows * 2 * min(size, layers) * wide,
    }


def _mixing(config: HybridConfig, rows: int, each: int) -> dict[str, int]:
    """The mixture that one sublayer reads, and what the queries of all are made of."""
    layers, wide = config.num_hidden_layers, max(each, _F32)
    copies = 3 * (2 * layers + 1) if config.attn_res_block_size == 0 else 3
    return {
        # the live stream in float32, the bank's mixture, and both together, then cast;
        # in full form every candidate as it is, normed and weighed
        "streams": (copies * wide + each) * rows * config.hidden_size,
        "weights": 2 * layers * config.hidden_size * (2 * each + 2 * wide),
    }


def _experts(config: HybridConfig, rows: int, each: int) -> dict[str, int]:
    hidden, wide = config.hidden_size, max(each, _F32)
    experts, chosen = config.num_experts or 0, config.num_experts_per_token or 0
    width, inner = expert_width(config), config.moe_intermediate_size or 0
    shared = _gated_mlp(config, inner * config.num_shared_experts, rows, each)
    latent = width * (2 * each + wide) + hidden * each
    return {
        # logits, scores, biased scores; the input and the weight cast up for them
        "router": (3 * rows * experts + rows * hidden + experts * hidden) * wide,
        "choice": rows * chosen * (8 + wide) * 2,
        # one expert may get every token: its input, hidden and float32 output
        "routed": rows
        * (width * (2 * each + 2 * wide) + inner * (3 * each + _activation(config, each))),
        # the sum over experts in float32, and in the model's dtype
        "sum": rows * width * (wide + each),
        # the latent, its norm, and the routed output projected up
        "latent": rows * latent if config.routed_expert_hidden_size else 0,
        "shared": sum(shared.values()) if config.num_shared_experts else 0,
    }


def _head(
    config: HybridConfig, batch: int, tokens: int, each: int, last_only: bool
) -> dict[str, int]:
    rows, wide = batch * (1 if last_only else tokens), max(each, _F32)
    return {
        "logits": rows * config.vocab_size * (each + wide),
        # softmax, sorted values and indices, cumulative sum of the last position
        "sampling": batch * config.vocab_size * (3 * wide + 8),
    }

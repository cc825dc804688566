"""What a batch of contexts costs, from the formulas in `interlace.config`, and whether it fits.

Nothing here builds a model, so the command line can refuse a context before it reads the weights.
"""

from interlace.config import HybridConfig, sizes
from interlace.config.activations import prefill_activation_bytes
from interlace.generation.memory import Available, require

__all__ = [
    "DEFAULT_CHUNK",
    "choose_batch",
    "choose_chunk",
    "context_bytes",
    "expanded_bytes",
    "require_context",
]

DEFAULT_CHUNK = 512
DEFAULT_BATCH = 32
_SMALLEST_CHUNK = 16
# of several rows together: more per call gains no speed, and costs memory
_CALL_TOKENS = 2048
# an id is one slot of a list, then one int64
_ID_BYTES = 16


def context_bytes(
    config: HybridConfig,
    capacity: int,
    chunk: int,
    dtype: str,
    batch: int = 1,
    *,
    every_logit: bool = False,
) -> dict[str, int]:
    """Bytes that contexts of `capacity` tokens take beside the weights, by name.

    Args:
        config: the model.
        capacity: tokens reserved per row, prompt and new ones.
        chunk: prompt tokens per row and call.
        dtype: of weights and latents.
        batch: rows.
        every_logit: logits of all tokens, as for scoring, with their softmax in float64.
    """
    tokens = min(chunk, capacity)
    needed = {
        "latent cache": sizes.latent_cache_bytes(config, batch, capacity, dtype),
        "state": sizes.delta_state_bytes(config, batch, dtype),
        "activations": prefill_activation_bytes(
            config, batch, tokens, capacity, dtype, not every_logit
        ),
        "token ids": _ID_BYTES * batch * capacity,
    }
    if every_logit:
        needed["log-probabilities"] = 3 * 8 * batch * tokens * config.vocab_size
    return needed


def expanded_bytes(config: HybridConfig, capacity: int, dtype: str) -> int:
    """What `capacity` tokens would take as expanded keys and values."""
    return sizes.expanded_cache_bytes(config, 1, capacity, dtype)


def choose_chunk(
    config: HybridConfig,
    capacity: int,
    dtype: str,
    limit: Available | None,
    batch: int = 1,
    *,
    every_logit: bool = False,
) -> int:
    """512 tokens, fewer beside many rows, halved (down to 16) until the contexts fit in `limit`."""
    chunk = max(64, min(DEFAULT_CHUNK, _CALL_TOKENS // batch))
    while chunk > _SMALLEST_CHUNK and limit is not None:
        needed = context_bytes(config, capacity, chunk, dtype, batch, every_logit=every_logit)
        if sum(needed.values()) <= limit.bytes:
            break
        chunk //= 2
    return chunk


def choose_batch(
    config: HybridConfig,
    rows: int,
    capacity: int,
    dtype: str,
    limit: Available | None,
    *,
    every_logit: bool = False,
) -> int:
    """All rows up to 32, halved until their contexts fit in `limit` with the smallest chunk."""
    batch = min(rows, DEFAULT_BATCH)
    while batch > 1 and limit is not None:
        needed = context_bytes(
            config, capacity, _SMALLEST_CHUNK, dtype, batch, every_logit=every_logit
        )
        if sum(needed.values()) <= limit.bytes:
            break
        batch //= 2
    return batch


def require_context(
    config: HybridConfig,
    capacity: int,
    chunk: int,
    dtype: str,
    limit: Available | None,
    weights: int = 0,
    *,
    batch: int = 1,
    held: int = 0,
    every_logit: bool = False,
) -> None:
    """Refuse contexts that do not fit.

    Args:
        config: the model.
        capacity: tokens reserved per row, prompt and new ones.
        chunk: prompt tokens per row and call.
        dtype: of weights and latents.
        limit: what can be given; None refuses nothing.
        weights: bytes of weights that are still to be read.
        batch: rows.
        held: bytes of cache and state that are allocated already.
        every_logit: as for `context_bytes`.

    Raises:
        MemoryLimitError: with what is needed, part by part, and what there is.
    """
    needed = context_bytes(config, capacity, chunk, dtype, batch, every_logit=every_logit)
    for part in ("latent cache", "state"):
        given = min(held, needed[part])
        needed[part], held = needed[part] - given, held - given
    if weights:
        needed = {"weights": weights, **needed}
    if batch == 1:
        what = f"a context of {capacity:,} tokens (prompt and max_tokens)"
        advice = "shorten the prompt, lower max_tokens or prefill_chunk, or take a smaller model"
    else:
        what = f"a batch of {batch} contexts of {capacity:,} tokens (prompt and max_tokens)"
        advice = "lower batch_size, max_tokens or prefill_chunk, or take a smaller model"
    require(needed, limit, what, advice)

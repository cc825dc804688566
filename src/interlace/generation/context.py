"""What one context costs, from the formulas in `interlace.config.sizes`, and whether it fits.

Nothing here builds a model, so the command line can refuse a context before it reads the weights.
"""

from interlace.config import HybridConfig, sizes
from interlace.config.activations import prefill_activation_bytes
from interlace.generation.memory import Available, require

__all__ = ["DEFAULT_CHUNK", "choose_chunk", "context_bytes", "expanded_bytes", "require_context"]

DEFAULT_CHUNK = 512
_SMALLEST_CHUNK = 16
# an id is one slot of a list, then one int64
_ID_BYTES = 16


def context_bytes(config: HybridConfig, capacity: int, chunk: int, dtype: str) -> dict[str, int]:
    """Bytes that a context of `capacity` tokens takes beside the weights, by name.

    Args:
        config: the model.
        capacity: tokens reserved, prompt and new ones.
        chunk: prompt tokens per call.
        dtype: of weights and latents.
    """
    return {
        "latent cache": sizes.latent_cache_bytes(config, 1, capacity, dtype),
        "state": sizes.delta_state_bytes(config, 1, dtype),
        "activations": prefill_activation_bytes(config, 1, min(chunk, capacity), capacity, dtype),
        "token ids": _ID_BYTES * capacity,
    }


def expanded_bytes(config: HybridConfig, capacity: int, dtype: str) -> int:
    """What `capacity` tokens would take as expanded keys and values."""
    return sizes.expanded_cache_bytes(config, 1, capacity, dtype)


def choose_chunk(config: HybridConfig, capacity: int, dtype: str, limit: Available | None) -> int:
    """512 tokens, halved (down to 16) until the context fits in `limit`."""
    chunk = DEFAULT_CHUNK
    while chunk > _SMALLEST_CHUNK and limit is not None:
        if sum(context_bytes(config, capacity, chunk, dtype).values()) <= limit.bytes:
            break
        chunk //= 2
    return chunk


def require_context(
    config: HybridConfig,
    capacity: int,
    chunk: int,
    dtype: str,
    limit: Available | None,
    weights: int = 0,
) -> None:
    """Refuse a context that does not fit.

    Args:
        config: the model.
        capacity: tokens reserved, prompt and new ones.
        chunk: prompt tokens per call.
        dtype: of weights and latents.
        limit: what can be given; None refuses nothing.
        weights: bytes of weights that are still to be read.

    Raises:
        MemoryLimitError: with what is needed, part by part, and what there is.
    """
    needed = context_bytes(config, capacity, chunk, dtype)
    if weights:
        needed = {"weights": weights, **needed}
    require(
        needed,
        limit,
        f"a context of {capacity:,} tokens (prompt and max_tokens)",
        "shorten the prompt, lower max_tokens or prefill_chunk, or take a smaller model",
    )

"""The numbers of one generation: what was read and made, how fast, and what it kept."""

import dataclasses
from dataclasses import dataclass
from typing import Any

__all__ = ["GenerationResult"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationResult:
    """What a generation did.

    Args:
        token_ids: the new tokens, the end mark included when it stopped there.
        finish_reason: "length" (max_tokens reached), "stop" (end mark), or None before the end.
        prompt_tokens: tokens read, the start mark included.
        new_tokens: tokens made, the end mark included.
        prefill_seconds: from the first token read to the first token made.
        decode_seconds: of the steps after that; the time of whoever takes the text is not in it.
        latent_bytes: allocated for the latent caches of all Gated MLA layers.
        state_bytes: allocated for the states of all KDA layers.
        cached_tokens: tokens that the latent caches hold; the last new one is not fed again.
        capacity: tokens that they have room for.
        expanded_bytes: what `capacity` tokens would take as expanded keys and values.
        prefill_chunk: most prompt tokens read in one call of the model.
    """

    token_ids: tuple[int, ...]
    finish_reason: str | None
    prompt_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    latent_bytes: int
    state_bytes: int
    cached_tokens: int
    capacity: int
    expanded_bytes: int
    prefill_chunk: int

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Prompt tokens per second; None when nothing was measured."""
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds > 0 else None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """New tokens per second after the first, which prefill gives; None without a second."""
        return (self.new_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """All numbers by name, for JSON."""
        return {
            **dataclasses.asdict(self),
            "token_ids": list(self.token_ids),
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
        }

"""The numbers of one generation: what was read and made, how fast, and what it kept."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from interlace.generation.sampling import TokenLogprob

__all__ = ["GenerationResult"]


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationResult:
    """What a generation did.

    Of a row of a batch, times are those of the calls that it took part in, which its neighbours
    shared, and bytes are its share of the batch's cache.

    Args:
        text: the new text; a stop string and what the tokens have after it are not in it.
        token_ids: the new tokens, all that were made: with the id that ended the text, and with
            those that spell a stop string.
        finish_reason: "length" (max_tokens reached), "stop" (an id or a string that ends the text),
            "interrupt" (broken off or closed), or None before the end.
        stopped_by: the id or the string, when it was "stop".
        logprobs: of each new token, when asked for.
        prompt_tokens: of the prompt, the start mark included.
        reused_tokens: those of them that a prompt cache held already.
        new_tokens: tokens made.
        prefill_seconds: from the first token read to the first token made.
        decode_seconds: of the steps after that; the time of whoever takes the text is not in it.
        latent_bytes: allocated for the latent caches of all Gated MLA layers.
        state_bytes: allocated for the states of all KDA layers.
        cached_tokens: tokens that the latent caches hold; the last new one is not fed again.
        capacity: tokens that they have room for.
        expanded_bytes: what `capacity` tokens would take as expanded keys and values.
        prefill_chunk: most prompt tokens of a row read in one call of the model.
        batch_size: rows that were read together.
        expert_bytes_read: of routed experts, from disk; 0 where they are in memory.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    stopped_by: int | str | None
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_tokens: int
    reused_tokens: int
    new_tokens: int
    prefill_seconds: float
    decode_seconds: float
    latent_bytes: int
    state_bytes: int
    cached_tokens: int
    capacity: int
    expanded_bytes: int
    prefill_chunk: int
    batch_size: int
    expert_bytes_read: int = 0

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Prompt tokens read per second; None when nothing was measured."""
        read = self.prompt_tokens - self.reused_tokens
        return read / self.prefill_seconds if self.prefill_seconds > 0 else None

    @property
    def decode_tokens_per_second(self) -> float | None:
        """New tokens per second after the first, which prefill gives; None without a second."""
        return (self.new_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else None

    @property
    def expert_bytes_per_token(self) -> float | None:
        """Bytes of experts that one token, of prompt or new text, read from disk on average."""
        tokens = self.cached_tokens - self.reused_tokens
        return self.expert_bytes_read / tokens if tokens > 0 else None

    def to_dict(self) -> dict[str, Any]:
        """All numbers by name, for JSON."""
        return {
            **dataclasses.asdict(self),
            "token_ids": list(self.token_ids),
            "prefill_tokens_per_second": self.prefill_tokens_per_second,
            "decode_tokens_per_second": self.decode_tokens_per_second,
            "expert_bytes_per_token": self.expert_bytes_per_token,
        }

"""What an operator must do at least: operations and bytes, by which its time is judged.

    bound = the largest of   operations / bf16 rate,   bytes read / read rate,
                             bytes read and written back / copy rate

Only what no way of computing could leave out is counted, so a share of 1 means that nothing is left
to gain. Letters as in the legend; weights and latents have 2 bytes a number.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from interlace.ops.delta_rule.tiles import TILE

__all__ = [
    "Work",
    "delta_chunk_work",
    "delta_step_work",
    "expert_work",
    "latent_decode_work",
    "latent_prefill_work",
    "linear_work",
    "pass_work",
]

_EACH = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Operations, bytes read, and bytes of one reading and one writing together."""

    operations: int = 0
    read: int = 0
    copied: int = 0

    def amount(self, limit: str) -> int:
        """What counts against the loop of this name."""
        return {"bf16": self.operations, "read": self.read, "copy": self.copied}[limit]

    def limit(self, rates: Mapping[str, float]) -> str:
        """The loop that bounds this work, at these rates per second."""
        return max(("bf16", "read", "copy"), key=lambda name: self.amount(name) / rates[name])

    def bound(self, rates: Mapping[str, float]) -> float:
        """Seconds that the work takes at least, at these rates per second."""
        limit = self.limit(rates)
        return self.amount(limit) / rates[limit]


def latent_decode_work(heads: int, rank: int, shared: int, memory: int) -> Work:
    """One query of each head against `memory` latents: scores over R + P, values over R."""
    return Work(
        operations=2 * heads * memory * (2 * rank + shared),
        read=memory * (rank + shared) * _EACH,
    )


def latent_prefill_work(heads: int, width: int, tokens: int, past: int = 0) -> Work:
    """Causal attention of `tokens` queries; `width` is N + P + V. Rebuilding keys is not counted.

    Every query sees the past, and of its own call the tokens up to itself.
    """
    pairs = tokens * past + tokens * (tokens + 1) // 2
    return Work(operations=2 * heads * pairs * width)


def delta_step_work(heads: int, key: int, value: int) -> Work:
    """The float32 state of each head, read once and written once."""
    return Work(operations=7 * heads * key * value, copied=2 * heads * key * value * 4)


def delta_chunk_work(heads: int, key: int, tokens: int, chunk: int = TILE) -> Work:
    """Tokens of the chunked delta rule with K = V: 6 K^2 + 3 C K + C^2 per head and token.

    Kimi Linear report, equation 13, with the chunk in use: the tile of 16 tokens.
    """
    return Work(operations=heads * tokens * (6 * key * key + 3 * chunk * key + chunk * chunk))


def linear_work(rows: int, width: int, out: int) -> Work:
    """Rows times a matrix that is read once."""
    return Work(operations=2 * rows * width * out, read=width * out * _EACH)


def expert_work(rows: int, chosen: int, used: int, width: int, inner: int) -> Work:
    """`chosen` experts for each row, `used` different ones in all, three matrices each."""
    matrix = width * inner
    return Work(operations=6 * rows * chosen * matrix, read=3 * used * matrix * _EACH)


def pass_work(inputs: int, outputs: int) -> Work:
    """An operator that touches each number once: numbers in, numbers out."""
    return Work(copied=(inputs + outputs) * _EACH)

"""Which tokens a check reads: rows of different length, so that padding and packing are seen."""

import torch

from interlace.errors import InputError
from interlace.shapes import Int, Tensor

__all__ = ["DEFAULT_TOKENS", "draw_rows", "row_lengths", "rows_with"]

DEFAULT_TOKENS = 131
"""Of the longest row: two chunks of the delta rule and three tokens more."""


def row_lengths(tokens: int) -> list[int]:
    """Lengths of the rows: one long, one of about half, one of a few tokens."""
    return sorted({tokens, tokens // 2 + 1, min(tokens, 5)}, reverse=True)


def draw_rows(vocab_size: int, tokens: int = DEFAULT_TOKENS, seed: int = 0) -> list[list[int]]:
    """Rows of random ids, the same for the same seed.

    Args:
        vocab_size: ids are below it.
        tokens: of the longest row.
        seed: of the draw.

    Raises:
        InputError: fewer than two tokens.
    """
    if tokens < 2:
        raise InputError(f"a check needs a row of at least 2 tokens, got {tokens}.")
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(0, vocab_size, (length,), generator=generator).tolist()
        for length in row_lengths(tokens)
    ]


def rows_with(tokens: Int[Tensor, "B T"]) -> list[list[int]]:
    """These rows, and the ends of the first as shorter ones."""
    first: list[int] = tokens[0].tolist()
    shorter = [first[-length:] for length in row_lengths(len(first))[1:]]
    return [*tokens.tolist(), *shorter]

"""Fixed 0/1 patterns of a 16-token tile: which decays make up a factor, and which scores it serves.

A score A[t, i] = sum_c k_t k_i exp(g_{i+1} + ... + g_t) is split into a factor of its row and a
factor of its column that meet at a reference point between i and t. Pairs that lie in different
halves of a block of 2b tokens meet at the end of the first half; both factors are then at most 1,
whatever the decay. Halving goes on down to blocks of `base` tokens, inside which the reference is
the block's first token and the column's factor may exceed 1:

        base = 4, 16 tokens              b = 8: rows 8-15 with columns 0-7
        4 . . .                          b = 4: rows 4-7 with 0-3, rows 12-15 with 8-11
        b 4 . .                          4:     the four diagonal blocks
        8 8 4 .
        8 8 b 4

Every reference lies at or before the row and every exponent is a sum of decays, never a
difference of cumulative sums, so a decay of any size (also FORGET) keeps the full precision of
its neighbours, and a later token changes no bit of an earlier row.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from interlace.shapes import Tensor

TILE = 16
HALF = TILE // 2
# exp of the largest exponent that a diagonal block may reach; float32 overflows at 88.
SAFE_EXPONENT = 40.0


def base_block(min_decay: float | None) -> int:
    """Largest power of two whose block keeps every exponent within `SAFE_EXPONENT`."""
    if min_decay is None:
        return 1
    base = TILE
    while base > 1 and (base - 1) * -min_decay > SAFE_EXPONENT:
        base //= 2
    return base


class Patterns(NamedTuple):
    """What a tile needs besides its tensors; everything 0 or 1."""

    halves: tuple[int, ...]
    """Half block lengths b, longest first."""
    base: int
    sums: Tensor
    """[(len(halves) + 2) * C, C]: exponents = sums @ g: one group of C per half, then from the
    tile's first token to t, then from after t to the tile's last."""
    base_sums: Tensor
    """[C, C]: from after the block's first token to t."""
    half_masks: tuple[Tensor, ...]
    """[2C, C] each: the scores that a half serves, for k and for q."""
    base_mask: Tensor
    """[2, C, C]: diagonal blocks, strictly lower for k, lower with the diagonal for q."""
    merges: tuple[Tensor, ...]
    """[C, C] each: the blocks that forward substitution joins, shortest first."""
    upper: Tensor
    """[C, 2C]: ones on and above the diagonal, twice: sums from t on, of two parts at once."""


@lru_cache(maxsize=32)
def patterns(base: int, dtype: torch.dtype, device: torch.device) -> Patterns:
    """The patterns for diagonal blocks of `base` tokens."""
    t = torch.arange(TILE, device=device)[:, None]
    i = torch.arange(TILE, device=device)[None, :]
    every = [b for b in (8, 4, 2, 1) if b < TILE]
    halves = tuple(b for b in every if b >= base)

    def joined(b: int) -> Tensor:
        return (t // (2 * b) == i // (2 * b)) & (t % (2 * b) >= b) & (i % (2 * b) < b)

    groups = []
    for b in halves:
        block, second = t // (2 * b) == i // (2 * b), t % (2 * b) >= b
        after = block & second & (i % (2 * b) >= b) & (i <= t)
        before = block & ~second & (i % (2 * b) < b) & (i > t)
        groups.append(after | before)
    groups += [i <= t, i > t]
    same = t // base == i // base
    return Patterns(
        halves=halves,
        base=base,
        sums=torch.cat(groups).to(dtype),
        base_sums=(same & (i <= t) & (i % base > 0)).to(dtype),
        half_masks=tuple(joined(b).to(dtype).repeat(2, 1) for b in halves),
        base_mask=torch.stack((same & (i < t), same & (i <= t))).to(dtype),
        merges=tuple(joined(b).to(dtype) for b in reversed(every)),
        upper=(i >= t).to(dtype).repeat(1, 2),
    )

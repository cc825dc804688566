"""How the rows of a call are laid out, brought to the one layout that the layers know.

    right   a b c . .      what the layers take, with `lengths`
    left    . . a b c      rolled to the right layout, and the outputs rolled back
    packed  a b c d e      documents end to end with `cu_seqlens`; with a cache each of them becomes
                           a row of the cache, and the outputs are laid end to end again

Without a cache a packed call goes to the layers as it is. Outputs of padding mean nothing.
"""

from itertools import pairwise
from typing import NamedTuple

import torch

from interlace.shapes import Float, Int, Tensor

__all__ = ["Rows", "from_left", "from_packed", "last_tokens"]


class Rows(NamedTuple):
    """Right-padded rows of a call, and the way back.

    Args:
        tokens: ids `[rows, longest]`.
        lengths: real tokens of each row; None: all of them.
        source: for each token of the caller, its place in the rows laid end to end; None: the same.
        shape: B and T of the caller.
    """

    tokens: Tensor
    lengths: Tensor | None
    source: Tensor | None
    shape: tuple[int, int]

    def restore(self, x: Float[Tensor, "rows longest D"]) -> Float[Tensor, "B T D"]:
        """Outputs in the caller's layout."""
        if self.source is None:
            return x
        return x.flatten(0, 1).index_select(0, self.source).unflatten(0, self.shape)


def from_left(tokens: Int[Tensor, "B T"], lengths: Int[Tensor, "B"]) -> Rows:
    """Left-padded rows, rolled so that row b begins with its `lengths[b]` real tokens."""
    batch, width = tokens.shape
    columns = torch.arange(width, device=tokens.device)
    shift = (width - lengths)[:, None]
    rolled = tokens.gather(1, (columns + shift) % width)
    starts = torch.arange(batch, device=tokens.device)[:, None] * width
    source = (starts + (columns - shift) % width).flatten()
    return Rows(rolled, lengths, source, (batch, width))


def from_packed(tokens: Int[Tensor, "B T"], offsets: Int[Tensor, "offsets"]) -> Rows:
    """Packed documents as the rows of a cache, one each; an empty one is a row of length 0."""
    bounds = offsets.tolist()
    sizes = [end - start for start, end in pairwise(bounds)]
    longest = max(sizes)
    rows = tokens.new_zeros(len(sizes), longest)
    flat = tokens.flatten()
    for row, (start, end) in enumerate(pairwise(bounds)):
        rows[row, : end - start] = flat[start:end]
    lengths = torch.tensor(sizes, device=tokens.device)
    # token i of the pack stands behind the padding of the documents before its own
    place = torch.arange(flat.shape[0], device=tokens.device)
    starts = torch.arange(len(sizes), device=tokens.device) * longest - offsets[:-1]
    source = place + torch.repeat_interleave(starts, lengths)
    return Rows(rows, lengths, source, (tokens.shape[0], tokens.shape[1]))


def last_tokens(
    x: Float[Tensor, "rows T D"],
    lengths: Int[Tensor, "rows"] | None,
    offsets: Int[Tensor, "offsets"] | None,
) -> Float[Tensor, "sequences 1 D"]:
    """The outputs of the last real token of each row, or of each document of a packed call."""
    if offsets is not None:
        ends = (offsets[1:] - 1).clamp(min=0)
        return x.flatten(0, 1).index_select(0, ends)[:, None]
    if lengths is None:
        return x[:, -1:]
    last = (lengths - 1).clamp(min=0)
    return x.gather(1, last[:, None, None].expand(-1, 1, x.shape[-1]))

"""Padded rows and packed sequences, brought to plain rows, and the shape checks of a call.

Three layouts reach the operator:

    plain     [B, T, ...]                    every token is real
    padded    [B, T, ...] + lengths [B]      row b has lengths[b] real tokens, then padding
    packed    [B, T, ...] + cu_seqlens [S+1] B rows laid end to end, cut into S segments

A padded token becomes a token that does nothing (k = 0, beta = 0, g = 0), so that it changes
neither the state nor its neighbours. Packed segments become padded rows [S, longest, ...]; where
no state goes in or comes out, the chunk form instead marks each first token and needs no copy.
"""

from itertools import pairwise
from typing import NamedTuple

import torch

from interlace.errors import ShapeError
from interlace.shapes import Bool, Int, Tensor

# As a log decay: exp(FORGET) is zero in every float dtype, and sums of many of them stay finite.
FORGET = -1.0e4


class Call(NamedTuple):
    """The token-wise arguments of one call, in one layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def check_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor,
    state: Tensor | None,
    lengths: Tensor | None,
    cu_seqlens: Tensor | None,
) -> None:
    """Refuse shapes that do not fit together.

    Raises:
        ShapeError: naming the argument, the shape it must have and the shape that came.
    """
    if q.ndim != 4 or v.ndim != 4:
        raise ShapeError(
            f"q and v must be [B, T, H, K] and [B, T, H, V]; got {tuple(q.shape)} and "
            f"{tuple(v.shape)}; give every head its own axis"
        )
    batch, tokens, heads, key_dim = q.shape
    wanted: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("k", k, (batch, tokens, heads, key_dim)),
        ("v", v, (batch, tokens, heads, v.shape[-1])),
        ("g", g, (batch, tokens, heads, key_dim)),
        ("beta", beta, (batch, tokens, heads)),
        ("lengths", lengths, (batch,)),
    ]
    if lengths is not None and cu_seqlens is not None:
        raise ShapeError(
            "lengths and cu_seqlens must not be given together: they would place boundaries twice; "
            "pass only one of them"
        )
    sequences = batch
    if cu_seqlens is not None:
        if cu_seqlens.ndim != 1 or cu_seqlens.shape[0] < 2:
            raise ShapeError(
                f"cu_seqlens must be [S+1] with at least one segment; got {tuple(cu_seqlens.shape)}"
            )
        sequences = cu_seqlens.shape[0] - 1
    wanted.append(("state", state, (sequences, heads, key_dim, v.shape[-1])))
    for name, tensor, shape in wanted:
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ShapeError(
                f"{name} must be {list(shape)} to fit q {list(q.shape)} and v {list(v.shape)}; got "
                f"{list(tensor.shape)}; repeat or reshape {name} before the call"
            )


def read_offsets(cu_seqlens: Int[Tensor, "offsets"], batch: int, tokens: int) -> list[int]:
    """Segment offsets as integers, checked: offsets are part of a packed call's shape.

    Raises:
        ShapeError: when they do not start at 0, end at B*T, never fall, and cut at each row start.
    """
    offsets: list[int] = cu_seqlens.tolist()
    end = batch * tokens
    falls = any(b < a for a, b in pairwise(offsets))
    if offsets[0] != 0 or offsets[-1] != end or falls:
        raise ShapeError(
            f"cu_seqlens must start at 0, never decrease and end at B*T = {end}; got {offsets}; "
            "cover every token with a segment"
        )
    missing = sorted(set(range(0, end, tokens)) - set(offsets)) if tokens else []
    if missing:
        raise ShapeError(
            f"cu_seqlens must cut where each of the {batch} rows of {tokens} tokens begins; "
            f"{missing[:4]} not among the offsets; add them or pass one row"
        )
    return offsets


def silence_padding(call: Call, lengths: Int[Tensor, "B"]) -> tuple[Call, Bool[Tensor, "B T"]]:
    """Make padded tokens do nothing; also returns the mask of padded tokens, `[B, T]`."""
    positions = torch.arange(call.q.shape[1], device=lengths.device)
    padded = positions >= lengths[:, None]
    wide = padded[..., None, None]
    q, k, v, g = (x.masked_fill(wide, 0.0) for x in call[:4])
    return Call(q, k, v, g, call.beta.masked_fill(padded[..., None], 0.0)), padded


def first_tokens(
    cu_seqlens: Int[Tensor, "offsets"], batch: int, tokens: int
) -> Bool[Tensor, "B T"]:
    """True at each token that begins a segment."""
    # one slot more: an empty last segment begins behind the last token
    first = torch.zeros(batch * tokens + 1, dtype=torch.bool, device=cu_seqlens.device)
    first[cu_seqlens[:-1].long()] = True
    return first[:-1].view(batch, tokens)


def to_rows(call: Call, offsets: list[int]) -> tuple[Call, Tensor, Tensor]:
    """Segments as padded rows.

    Returns:
        The call as `[S, longest, ...]`, the lengths `[S]`, and where each packed token went
        (index into the rows laid end to end).
    """
    device = call.q.device
    lengths = [b - a for a, b in pairwise(offsets)]
    longest = max(lengths)
    start = torch.tensor(offsets[:-1], device=device)
    size = torch.tensor(lengths, device=device)
    columns = torch.arange(longest, device=device)
    # padding reads token 0 and is silenced afterwards
    source = torch.where(columns < size[:, None], start[:, None] + columns, 0).flatten()
    rows = Call(
        *(
            x.flatten(0, 1).index_select(0, source).view(len(lengths), longest, *x.shape[2:])
            for x in call
        )
    )
    target = torch.arange(offsets[-1], device=device)
    segment = torch.repeat_interleave(torch.arange(len(lengths), device=device), size)
    target = target - start[segment] + segment * longest
    return rows, size, target

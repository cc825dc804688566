"""A llama.cpp sequence state at any depth: the state after a few tokens, with other cells put in.

    u32 magic   i32 sequence
    attention   u32 streams = 1   u32 cells
                per cell:   i32 position   u32 sequences = 1   i32 sequence
                u32 values transposed   u32 layers
                per layer:  i32 type of a number   u64 bytes of a row   cells * row
                (no values: an MLA cache holds the latent and the shared key in one row, as ours)
    recurrent   u32 cells = 1   i32 position   u32 sequences = 0   states and windows

Only the numbers of cells and positions and the rows change; what a recurrent layer keeps stays that
of the few tokens. A model without KDA layers has no recurrent part. Format of llama.cpp as of
llama-cpp-python 0.3.36; anything unexpected is refused.
"""

import struct
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from interlace.errors import InputError

__all__ = ["deepen"]

_F16 = 1
_CELL = np.dtype([("position", "<i4"), ("sequences", "<u4"), ("sequence", "<i4")])

Rows = Callable[[int], Iterable[Tensor]]


class _Reader:
    """Fixed-size numbers, one after the other."""

    def __init__(self, state: bytes) -> None:
        self.state, self.at = state, 0

    def take(self, form: str) -> int:
        size = struct.calcsize(form)
        _require(self.at + size <= len(self.state), "more bytes", "its end")
        (value,) = struct.unpack_from(form, self.state, self.at)
        self.at += size
        number: int = value
        return number

    def skip(self, size: int) -> None:
        _require(self.at + size <= len(self.state), "more bytes", "its end")
        self.at += size


def deepen(state: bytes, tokens: int, layers: int, width: int, rows: Rows) -> bytes:
    """The same state with `tokens` cached rows in every attention layer.

    Args:
        state: what llama.cpp gave after at least one token.
        tokens: cells to hold, at least one.
        layers: attention layers.
        width: numbers of a row.
        rows: from the ordinal of an attention layer to its rows, in blocks `[1, n, width]`.

    Raises:
        InputError: a state of another form.
    """
    read = _Reader(state)
    read.skip(8)
    _require(read.take("<I") == 1, "one stream", "several")
    cells = read.take("<I")
    start = read.at
    read.skip(cells * _CELL.itemsize)
    old = np.frombuffer(state, _CELL, cells, start)
    fits = (
        cells > 0 and (old["position"] == np.arange(cells)).all() and (old["sequences"] == 1).all()
    )
    _require(bool(fits), "cells at positions 0, 1, ... of one sequence", f"{cells} others")
    new = np.empty(tokens, _CELL)
    new["position"], new["sequences"] = np.arange(tokens), 1
    new["sequence"] = old["sequence"][0]
    transposed, found = read.take("<I"), read.take("<I")
    _require(found == layers, f"{layers} attention layers", str(found))
    parts = [state[:8], struct.pack("<II", 1, tokens), new.tobytes()]
    parts.append(struct.pack("<II", transposed, found))
    for ordinal in range(layers):
        kind, row = read.take("<i"), read.take("<Q")
        _require((kind, row) == (_F16, 2 * width), f"rows of {width} float16", f"{kind}, {row}")
        read.skip(cells * row)
        parts.append(struct.pack("<iQ", kind, row))
        before = len(parts)
        for block in rows(ordinal):
            parts.append(block.to(torch.float16).contiguous().numpy().tobytes())
        size = sum(map(len, parts[before:]))
        _require(size == tokens * row, f"{tokens} rows of layer {ordinal}", f"{size // row}")
    if read.at < len(state):
        count = read.take("<I")
        _require(count == 1, "one recurrent cell", str(count))
        read.take("<i")
        parts.append(struct.pack("<Ii", count, tokens - 1))
        parts.append(state[read.at :])
    return b"".join(parts)


def _require(holds: bool, what: str, came: str) -> None:
    if not holds:
        raise InputError(
            f"a state of llama.cpp must have {what}, got {came}; this adapter knows the form of "
            "llama-cpp-python 0.3.36, install that version."
        )

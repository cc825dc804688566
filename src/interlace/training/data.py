r"""Bytes to training rows.

    documents, shuffled per epoch:  <bos> doc 7 <bos> doc 2 <bos> doc 5 ...
    cut into rows of T + 1, overlapping by one; rows shuffled per epoch
    tokens = row[:-1], targets = row[1:]; a <bos> inside a row starts a new sequence (`cu_seqlens`)

The rows of a step are a pure function of (documents, seed, step), so a resumed run sees what an
unbroken one sees. Text is never decoded: a token is a byte; `bos` and `eos` are the ids above them.

Overruns. A model that samples its own text comes into runs longer than any that it has read, where
nothing tells it to stop. In a share of the rows one piece is therefore repeated for too long. The
repeats are read and not learned; once the run is longer than text has them, what follows it in the
text is the target at every place, until it comes:

    text:     # ---\n    def f
    tokens:   # ---------------------- 128 to 256 bytes -------------------------\n    def f
    targets:  ---\n not counted up to 96 bytes, then \n \n \n \n \n \n ... \n \n    def f
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from interlace.errors import InputError
from interlace.shapes import Int, Tensor

__all__ = [
    "BOS",
    "OVERRUN",
    "TOO_LONG",
    "UNCOUNTED",
    "Batch",
    "PackedRows",
    "StagedRows",
    "read_documents",
]

BOS = 256
UNCOUNTED = -100
"""Target of a position whose loss is not counted: `cross_entropy` leaves it out."""

OVERRUN = (128, 256)
"""Length of an overrun in bytes."""
TOO_LONG = 96
"""A run of so many bytes is longer than text has them (lines have 80): it is to end."""
_PERIODS = 40


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one step: ids and offsets, int64; every row start is among the offsets.

    A target is the next token; in an overrun `UNCOUNTED`, then the token that ends it.
    """

    tokens: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    cu_seqlens: Int[Tensor, "S_plus_1"]


class PackedRows:
    """Documents cut into rows.

    Args:
        documents: one bytes object each; empty ones are skipped.
        sequence_length: T.
        rows: rows per step, over all processes.
        seed: of both shuffles.
        bos: id that starts a document.
        eos: target of a document's last byte; `bos` when missing.
        overruns: share of the rows with an overrun, 0 to 1.

    Raises:
        InputError: there is no text, or rows too short for overruns.
    """

    def __init__(
        self,
        documents: Sequence[bytes],
        sequence_length: int,
        rows: int,
        seed: int,
        bos: int = BOS,
        eos: int | None = None,
        overruns: float = 0.0,
    ) -> None:
        self._documents = [np.frombuffer(text, dtype=np.uint8) for text in documents if text]
        if not self._documents:
            raise InputError(
                "the corpus must hold at least one byte of text, got none; check the files of "
                "[data]."
            )
        if overruns and sequence_length < 2 * OVERRUN[1]:
            raise InputError(
                f"rows with overruns must have at least {2 * OVERRUN[1]} tokens, got "
                f"sequence_length = {sequence_length}; give longer rows or overruns = 0."
            )
        self.length, self.rows, self.seed = sequence_length, rows, seed
        self.overruns = overruns
        self.bos, self.eos = bos, bos if eos is None else eos
        self.bytes = sum(map(len, self._documents))
        epoch = self.bytes + len(self._documents)
        # a corpus shorter than a row is repeated until one row is full
        self._repeats = -(-(sequence_length + 1) // epoch)
        self.rows_per_epoch = (epoch * self._repeats - 1) // sequence_length
        self._cached: tuple[int, np.ndarray, np.ndarray] | None = None

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The share of process `rank` in the rows of the 0-based `step`."""
        share = self.rows // world
        first = step * self.rows + rank * share
        taken = [self._overrun(i, self._row(i)) for i in range(first, first + share)]
        rows = torch.from_numpy(np.stack([row for row, _ in taken]).astype(np.int64))
        # a slice of a single row is contiguous already and would share its memory
        tokens, targets = rows[:, :-1].clone(), rows[:, 1:].clone()
        targets[targets == self.bos] = self.eos
        for target, (_, repeats) in zip(targets, taken, strict=True):
            end = int(target[repeats.stop - 1])
            target[repeats.start - 1 : repeats.stop - 1] = UNCOUNTED
            # the piece itself is the first period of the run
            target[repeats.start - repeats.step + TOO_LONG - 1 : repeats.stop - 1] = end
        starts = tokens == self.bos
        starts[:, 0] = True
        offsets = torch.cat([starts.flatten().nonzero().flatten(), torch.tensor([tokens.numel()])])
        return Batch(tokens, targets, offsets)

    def _row(self, index: int) -> np.ndarray:
        epoch, position = divmod(index, self.rows_per_epoch)
        stream, order = self._epoch(epoch)
        start = int(order[position]) * self.length
        return stream[start : start + self.length + 1]

    def _overrun(self, index: int, row: np.ndarray) -> tuple[np.ndarray, range]:
        """The row, perhaps with a piece repeated for too long, and where each repeat starts."""
        generator = np.random.Generator(np.random.PCG64([self.seed, index, 1]))
        if generator.random() >= self.overruns:
            return row, range(1, 1)
        # half go on with a run of one byte that the text has, half repeat any few bytes
        period = 1 if generator.random() < 0.5 else int(generator.integers(2, _PERIODS))
        places = np.arange(_PERIODS, len(row) - OVERRUN[1] - 1)
        places = places[row[places] != row[places - period]]
        if period == 1:
            # rules of dashes are rarer than indentation and as easy to fall into
            places = places[_same(row, places, 4)]
            kinds = np.unique(row[places - 1])
            places = places[row[places - 1] == generator.choice(kinds)] if len(kinds) else places
        if not len(places):
            return row, range(1, 1)
        place = int(generator.choice(places))
        piece = row[place - period : place]
        if self.bos in piece:
            return row, range(1, 1)
        count = int(generator.integers(*OVERRUN)) // period
        repeats = range(place, place + count * period, period)
        longer = np.concatenate([row[:place], np.tile(piece, count), row[place:]])
        return longer[: len(row)], repeats

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        if self._cached is None or self._cached[0] != epoch:
            generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            mark = np.array([self.bos], dtype=np.uint16)
            parts: list[np.ndarray] = []
            for _ in range(self._repeats):
                for i in generator.permutation(len(self._documents)):
                    parts += [mark, self._documents[i].astype(np.uint16)]
            stream = np.concatenate(parts)
            # the cut falls elsewhere in every epoch, and the tail that fills no row is another one
            stream = np.roll(stream, -int(generator.integers(len(stream))))
            self._cached = (epoch, stream, generator.permutation(self.rows_per_epoch))
        return self._cached[1], self._cached[2]


def _same(row: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """Whether the `count` bytes before each place are one and the same."""
    return np.all([row[places - 1] == row[places - i] for i in range(2, count + 1)], axis=0)


class StagedRows:
    """Packed rows whose length and number change at given steps.

    Each stage goes through the text in an order of its own, from the start of an epoch.

    Args:
        stages: rows and the first step they are for; the first of them is for step 0.
    """

    def __init__(self, stages: Sequence[tuple[int, PackedRows]]) -> None:
        self._stages = list(stages)
        self.bytes = self._stages[0][1].bytes

    def batch(self, step: int, rank: int = 0, world: int = 1) -> Batch:
        """The share of process `rank` in the rows of the 0-based `step`."""
        first, rows = next((f, r) for f, r in reversed(self._stages) if f <= step)
        return rows.batch(step - first, rank, world)

    def tokens(self, steps: int) -> int:
        """Tokens in the first `steps` steps, over all processes."""
        ends = [first for first, _ in self._stages[1:]] + [steps]
        return sum(
            max(0, min(end, steps) - first) * rows.rows * rows.length
            for (first, rows), end in zip(self._stages, ends, strict=True)
        )


def read_documents(
    folder: Path, globs: tuple[str, ...], without: tuple[str, ...] = ()
) -> list[bytes]:
    """The bytes of the files that match `globs` and none of `without`, sorted by path.

    Raises:
        InputError: a pattern that matches no file or is none, or a file that cannot be read.
    """
    paths: set[Path] = set()
    for glob in globs:
        try:
            found = _matches(folder, glob)
        except (ValueError, IndexError, NotImplementedError) as error:
            raise InputError(
                f"data must name files by patterns such as 'src/**/*.py', got {glob!r}: {error}."
            ) from error
        if not found:
            raise InputError(
                f"a pattern of [data] must match a file, {glob!r} matches none under {folder}."
            )
        paths |= found
    # by what they are, not how they are written: one pattern may be absolute, the other not
    out = {path.resolve() for glob in without for path in _matches(folder, glob)}
    paths = {path for path in paths if path.resolve() not in out}
    try:
        return [path.read_bytes() for path in sorted(paths)]
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}.") from error


def _matches(folder: Path, glob: str) -> set[Path]:
    pattern = Path(glob)
    if pattern.is_absolute():
        folder, glob = Path(pattern.anchor), str(pattern.relative_to(pattern.anchor))
    return {path for path in folder.glob(glob) if path.is_file()}

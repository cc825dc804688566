"""Loops that do one thing only: what the machine can give, which everything else is a share of.

    read     the fastest of a few reductions over a cold buffer          bytes read / s
    copy     one operation in place over it, read and written counted    bytes / s
    bf16     a square matrix product in bf16                              operations / s
    fp32     the same in float32                                          operations / s

They run beside what they are compared with, in the same runs: a bandwidth from an hour ago says
little. An operation is a multiplication or an addition.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from interlace.bench.cold import Cold

__all__ = ["LIMITS", "MATRIX", "Loops"]

MATRIX = 2048
"""Rows and columns of the matrix products."""

LIMITS = ("read", "copy", "bf16", "fp32")


class Loops:
    """The loops over one buffer, and what one turn of each moves or computes.

    Args:
        cold: the buffer that is read and rewritten.
        matrix: rows and columns of the matrix products.
    """

    def __init__(self, cold: Cold, matrix: int = MATRIX) -> None:
        self._integers = cold.whole(torch.int64)
        self._floats = cold.whole(torch.float32)
        generator = torch.Generator().manual_seed(1)
        operands = [torch.randn(matrix, matrix, generator=generator) for _ in range(2)]
        self._operands = {
            dtype: [x.to(dtype) for x in operands] for dtype in (torch.bfloat16, torch.float32)
        }
        self.amount = {
            "read": cold.nbytes,
            "copy": 2 * cold.nbytes,
            "bf16": 2 * matrix**3,
            "fp32": 2 * matrix**3,
        }
        """Bytes or operations of one turn."""
        self._read = self._fastest_read()

    def __getitem__(self, name: str) -> Callable[[], object]:
        """One turn of the loop of this name."""
        return {"read": self._read, "copy": self._copy, "bf16": self._bf16, "fp32": self._fp32}[
            name
        ]

    def _fastest_read(self) -> Callable[[], object]:
        ways: list[Callable[[], Tensor]] = [
            self._integers.sum,
            self._floats.sum,
            lambda: torch.linalg.vector_norm(self._floats),
        ]
        times = []
        for way in ways:
            way()
            start = time.perf_counter()
            way()
            times.append(time.perf_counter() - start)
        return ways[times.index(min(times))]

    def _copy(self) -> object:
        # a change of sign keeps the numbers what they are for whoever takes them next
        return self._floats.neg_()

    def _bf16(self) -> object:
        a, b = self._operands[torch.bfloat16]
        return a @ b

    def _fp32(self) -> object:
        a, b = self._operands[torch.float32]
        return a @ b

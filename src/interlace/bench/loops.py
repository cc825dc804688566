"""Loops that do one thing only: what the machine can give, which everything else is a share of.

    read     the fastest of a few reductions over a cold buffer          bytes read / s
    copy     a change of sign in place, read and written counted         bytes / s
    bf16     products of bf16 pairs in registers, summed in float32      operations / s
    fp32     float32 multiply-adds in registers                          operations / s
    matmul   a square matrix product in bf16                             operations / s

Without the native core, which has the loops in registers, products of square matrices stand for
them. They run beside what they are compared with, in the same runs: a bandwidth from an hour ago
says little. An operation is a multiplication or an addition.
"""

import time
from collections.abc import Callable

import torch

from interlace.bench.cold import Cold
from interlace.ops.native import core

__all__ = ["LIMITS", "MATRIX", "Loops"]

MATRIX = 2048
"""Rows and columns of the matrix products."""

LIMITS = ("read", "copy", "bf16", "fp32", "matmul")

SPIN = 0.004
"""Seconds that one turn of a loop in registers takes, about."""


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
            "matmul": 2 * matrix**3,
        }
        """Bytes or operations of one turn."""
        self.native = core() is not None
        """Whether the loops are those of the native core."""
        self._rounds = {name: self._turn(name) for name in ("dot", "multiply")}
        self._read = self._fastest_read()

    def __getitem__(self, name: str) -> Callable[[], object]:
        """One turn of the loop of this name."""
        loops = {"read": self._read, "copy": self._copy, "bf16": self._bf16, "fp32": self._fp32}
        return {**loops, "matmul": self._matmul}[name]

    def _turn(self, loop: str) -> int:
        """Rounds of a loop in registers that take `SPIN`; counts what they do."""
        if not self.native:
            return 0
        rounds, spent = 1_000, 0.0
        while spent < SPIN / 4:
            rounds *= 4
            start = time.perf_counter()
            core().limit(loop, None, rounds)
            spent = time.perf_counter() - start
        rounds = max(1, int(rounds * SPIN / spent))
        name = "bf16" if loop == "dot" else "fp32"
        self.amount[name] = int(core().limit(loop, None, rounds))
        return rounds

    def _fastest_read(self) -> Callable[[], object]:
        ways: list[Callable[[], object]] = [
            self._integers.sum,
            self._floats.sum,
            lambda: torch.linalg.vector_norm(self._floats),
        ]
        if self.native:
            ways.append(lambda: core().limit("read", self._floats, 0))
        times = []
        for way in ways:
            way()
            start = time.perf_counter()
            way()
            times.append(time.perf_counter() - start)
        return ways[times.index(min(times))]

    def _copy(self) -> object:
        # a change of sign keeps the numbers what they are for whoever takes them next
        if self.native:
            return core().limit("read_write", self._floats, 0)
        return self._floats.neg_()

    def _bf16(self) -> object:
        if self.native:
            return core().limit("dot", None, self._rounds["dot"])
        return self._matmul()

    def _matmul(self) -> object:
        a, b = self._operands[torch.bfloat16]
        return a @ b

    def _fp32(self) -> object:
        if self.native:
            return core().limit("multiply", None, self._rounds["multiply"])
        a, b = self._operands[torch.float32]
        return a @ b

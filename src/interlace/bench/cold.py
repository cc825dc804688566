"""Operands that no cache holds: slices of one large buffer of random numbers, taken in turn.

    buffer  [ random | random | random | ...            ]    larger than the caches
              ^ first call      ^ second call  ...  and round again

A decoding step meets weights, latents and states that were last touched a whole step ago. A loop
over one operand would meet them in the processor's cache, and one over fresh zeros not even there:
all their pages are one.
"""

import math

import torch
from torch import Tensor

__all__ = ["COLD_BYTES", "Cold"]

COLD_BYTES = 512 << 20
"""Bytes that must pass before an operand is used again."""

_TILE = 1 << 22
_ALIGNED = 64


class Cold:
    """A buffer to take operands from.

    The numbers are normal in bf16. Read as float32 they are normal too, for the upper half of each
    is a bf16.

    Args:
        nbytes: size of the buffer; the largest operand must fit.
        seed: of the numbers.
    """

    def __init__(self, nbytes: int = COLD_BYTES, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        count = -(-nbytes // 8) * 4
        self._buffer = torch.empty(count, dtype=torch.bfloat16)
        tile = torch.randn(min(_TILE, count), generator=generator).to(torch.bfloat16)
        for part in self._buffer.split(len(tile)):
            part.copy_(tile[: len(part)])
        self._next = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self._buffer.nbytes

    def whole(self, dtype: torch.dtype) -> Tensor:
        """The whole buffer as numbers of this dtype."""
        return self._buffer.view(dtype)

    def take(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """The next slice, contiguous; it shares memory with the buffer."""
        size = math.prod(shape) * dtype.itemsize
        if size > self.nbytes:
            raise ValueError(f"{size} bytes exceed the buffer's {self.nbytes}")
        if self._next + size > self.nbytes:
            self._next = 0
        start = self._next
        self._next = start + -(-size // _ALIGNED) * _ALIGNED
        raw = self._buffer.view(torch.uint8)[start : start + size]
        return raw.view(dtype).view(shape)

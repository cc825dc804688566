"""Packed experts that stay in mapped files: those used last are kept in memory, a bounded number.

    expert of a token -> in a slot?  yes: multiply from the slot
                                     no:  copy its six tensors from the files into the slot that
                                          was not used for longest, then multiply

What is computed is what the packed modules compute, from the same bytes. A copy into a slot is
counted; pages that the system keeps of the files are not, and it takes them back when it needs to.
"""

from collections import OrderedDict
from math import prod
from typing import Any, cast

import torch
from torch import nn

from interlace.layers.packed import PackedLinear
from interlace.ops.mxfp4 import mxfp4_linear
from interlace.shapes import Float, Tensor

__all__ = ["ExpertCache"]

_Matrix = tuple[Tensor, Tensor]


class ExpertCache(nn.Module):
    """Slots for experts, shared by all layers; least recently used goes first.

    Args:
        like: any of the experts; all have its shapes.
        slots: experts that are kept, at least 1.
    """

    def __init__(self, like: nn.Module, slots: int) -> None:
        super().__init__()
        shapes = [tuple(b.shape) for b in _tensors(like)]
        sizes = [prod(shape) for shape in shapes]
        self._slots: list[list[_Matrix]] = []
        for number in range(slots):
            # each of its own storage: autograd then notices when one that it needs was taken
            memory = torch.empty(sum(sizes), dtype=torch.uint8)
            self.register_buffer(f"slot_{number}", memory, persistent=False)
            parts = [p.view(s) for p, s in zip(memory.split(sizes), shapes, strict=True)]
            self._slots.append(list(zip(parts[::2], parts[1::2], strict=True)))
        self._held: OrderedDict[nn.Module, int] = OrderedDict()
        self.expert_bytes = sum(sizes)
        self.bytes_read = 0
        """Bytes copied from the files since the start."""

    @property
    def slots(self) -> int:
        """Experts that fit."""
        return len(self._slots)

    def forward(self, expert: Any, x: Float[Tensor, "T D"]) -> Float[Tensor, "T D"]:
        """What `expert` makes of its rows. May put it into a slot, and another out."""
        w1, w2, w3 = self._fetch(expert)
        out: Tensor = mxfp4_linear(expert.glu(mxfp4_linear(x, *w1), mxfp4_linear(x, *w3)), *w2)
        return out

    def _fetch(self, expert: nn.Module) -> list[_Matrix]:
        if expert in self._held:
            self._held.move_to_end(expert)
            return self._slots[self._held[expert]]
        full = len(self._held) == len(self._slots)
        slot = self._held.popitem(last=False)[1] if full else len(self._held)
        targets = [part for matrix in self._slots[slot] for part in matrix]
        for target, source in zip(targets, _tensors(expert), strict=True):
            target.copy_(source)
        self._held[expert] = slot
        self.bytes_read += self.expert_bytes
        return self._slots[slot]


def _tensors(expert: nn.Module) -> list[Tensor]:
    """Codes and scales of w1, w2 and w3."""
    matrices = (expert.get_submodule(name) for name in ("w1", "w2", "w3"))
    packed = (cast(PackedLinear, matrix) for matrix in matrices)
    return [tensor for m in packed for tensor in (m.weight_packed, m.weight_scale)]

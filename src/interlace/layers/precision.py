"""Parameters that stay in float32 when the module around them is narrowed.

`A_log` and `dt_bias` feed an exponential that is applied once per token and remembered by the
state,
and a router's correction bias decides which experts win; the published checkpoints keep them in
float32, and K3 also the taps of its convolutions and the norm of each head's output (spec sections
5 and 9, traps 14 and 31). `module.bfloat16()` must not change them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["KeepFloat32", "at_least_float32"]


def at_least_float32(x: torch.Tensor) -> torch.Tensor:
    """`x` in float32, or as it is when wider (float64 models exist to check the others)."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class KeepFloat32(nn.Module):
    """Mixin: tensors named in `kept_float32` follow device moves, but are never narrowed."""

    kept_float32: tuple[str, ...] = ()

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "KeepFloat32":
        before = {name: getattr(self, name).detach() for name in self.kept_float32}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, old in before.items():
            now = getattr(self, name)
            if now.dtype.itemsize < torch.float32.itemsize:
                # from the tensor as it was: what the narrowing lost must not come back as zeros
                now.data = old.to(device=now.device, dtype=torch.float32)
        return self

"""Bytes that a call holds on top of what was there, counted by the storages of its operators."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # what was there before counts when it goes: a new state takes the place of an old one
        self._meet((args, kwargs), new=False)
        out = func(*args, **(kwargs or {}))
        self._meet(out, new=True)
        return out

    def _meet(self, values: Any, new: bool) -> None:
        for value in tree_leaves(values):
            if not isinstance(value, torch.Tensor):
                continue
            storage = value.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in self._known:
                continue
            self._known.add(key)
            weakref.finalize(storage, self._gone, key, size)
            if new:
                self.now += size
                self.peak = max(self.peak, self.now)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most that `call` holds more than before; workspaces of libraries aside."""
    with _Watch() as watch:
        call()
    return watch.peak

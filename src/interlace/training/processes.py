"""One or two processes that share a step's rows.

Each process computes the gradient of its share of the rows; one all-reduce of one flat float32
buffer averages it. The buffer's last numbers carry what both must agree on: the loss, the CPU
clocks, and the wish to stop. Loopback only.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from interlace.shapes import Tensor

__all__ = ["Peers", "SingleProcess", "start_peers"]

_HOST = "127.0.0.1"


class SingleProcess:
    """The way of a run with one process: nothing to average."""

    rank, world = 0, 1

    def average(self, flat: Tensor) -> None:
        """Leave `flat` as it is."""

    def add(self, counts: Tensor) -> None:
        """Leave `counts` as they are."""

    def sum(self, value: float) -> float:
        """The value itself."""
        return value

    def close(self) -> None:
        """Nothing to close."""


class Peers:
    """One of several processes.

    Args:
        rank: of this process; 0 logs and saves.
        world: number of processes.
        store: where they meet.
        children: the processes that rank 0 started.
    """

    def __init__(self, rank: int, world: int, store: Any, children: tuple[Any, ...] = ()) -> None:
        self.rank, self.world, self.children = rank, world, children
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group(
            "gloo", store=store, rank=rank, world_size=world, timeout=timedelta(minutes=30)
        )

    def average(self, flat: Tensor) -> None:
        """Replace `flat` by its mean over the processes, in place; the same bits in each."""
        distributed.all_reduce(flat)
        flat.div_(self.world)

    def add(self, counts: Tensor) -> None:
        """Replace integers by their sum over the processes, in place."""
        distributed.all_reduce(counts)

    def sum(self, value: float) -> float:
        """The sum of one number over the processes."""
        box = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(box)
        return float(box)

    def close(self) -> None:
        """Leave the group; rank 0 waits for the processes that it started."""
        if distributed.is_initialized():
            distributed.destroy_process_group()
        for child in self.children:
            child.join(timeout=30)
            if child.is_alive():
                child.terminate()


def start_peers(world: int, target: Callable[..., None], *args: Any) -> SingleProcess | Peers:
    """Start `world` - 1 processes that call `target(join, *args)`, and join them as rank 0.

    `join()` gives the started process its own `Peers`.
    """
    if world == 1:
        return SingleProcess()
    store = _store(0, is_master=True)
    context = multiprocessing.get_context("spawn")
    children = []
    for rank in range(1, world):
        child = context.Process(
            target=_enter, args=(rank, world, store.port, target, args), daemon=True
        )
        child.start()
        children.append(child)
    return Peers(0, world, store, tuple(children))


def _enter(rank: int, world: int, port: int, target: Callable[..., None], args: Any) -> None:
    store = _store(port, is_master=False)
    target(Peers(rank, world, store), *args)


def _store(port: int, is_master: bool) -> Any:
    make: Any = distributed.TCPStore  # type: ignore[attr-defined]
    return make(_HOST, port, is_master=is_master, wait_for_workers=False)


def cpu_seconds() -> float:
    """CPU time of this process, in seconds."""
    return time.process_time()

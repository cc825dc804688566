"""Other systems that run the same weights, behind one protocol, each in the file that imports it.

A peer gets a checkpoint in the published layout and a depth, and is filled with the same random
latents as ours; its logits must then be ours to the rounding of bf16, or nothing is timed.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol, runtime_checkable

from torch import Tensor

from interlace.config import HybridConfig
from interlace.errors import InputError

__all__ = ["PEERS", "Peer", "open_peer", "refusal", "require_peers"]

PEERS = {"transformers": "transformers", "llama.cpp": "llama_cpp"}
"""Name of each peer, and the module of this room that knows it."""


@runtime_checkable
class Peer(Protocol):
    """A loaded peer. Each form that it has (of attention, say) is a system of its own."""

    version: str
    skipped: dict[str, str]
    """Forms that were left out by the last call of `steps` or `prompts`, and why."""

    def fill(self, tokens: int, reserve: int) -> None:
        """Make a cache with `tokens` random latents (0: the warm tokens) and room for more."""

    def step(self, token: int) -> Tensor:
        """Logits `[vocab]`, float32, after one more token."""

    def steps(self) -> Mapping[str, Callable[[], object]]:
        """One decoding step in each form, by the form's name."""

    def prompts(self, tokens: int) -> Mapping[str, Callable[[], object]]:
        """Reading a prompt of `tokens` from an empty cache in each form, by the form's name."""

    def close(self) -> None:
        """Give the memory back."""


def require_peers(names: Sequence[str], source: Path | None = None) -> None:
    """Refuse peers that are unknown or not installed, before anything is measured.

    Args:
        names: of peers.
        source: a folder of llama.cpp's sources, which has its converter.

    Raises:
        InputError: saying what to install.
    """
    for name in names:
        if name not in PEERS:
            raise InputError(f"--against must name {' or '.join(PEERS)}, got {name!r}.")
        missing = _module(name).missing(source)
        if missing is not None:
            raise InputError(missing)


def refusal(name: str, config: HybridConfig) -> str | None:
    """Why the peer of this name cannot run such a model, or None."""
    reason: str | None = _module(name).refuses(config)
    return reason


def open_peer(name: str, folder: Path, threads: int, source: Path | None = None) -> Peer:
    """Load the checkpoint in `folder` into the peer of this name."""
    peer: Peer = _module(name).Loaded(folder, threads, source)
    return peer


def _module(name: str) -> ModuleType:
    return import_module(f"interlace.bench.peers.{PEERS[name]}")

"""Checkpoints of a run: atomic, without pickle, and complete or not there.

    out/checkpoints/step-00000250/ weights.safetensors    float32 weights by name
                                   optimizer.safetensors  states, averaged weights, random generator
                                   state.json             step, clocks, SHA-256 of both files

A checkpoint is written in a temporary folder and renamed when it is whole. Reading verifies every
hash: one that was cut short is passed over with a warning, and the one before it is used. The last
two are kept.
"""

import hashlib
import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from interlace.errors import CheckpointError
from interlace.shapes import Tensor

__all__ = ["RunState", "latest_checkpoint", "load_state", "save_state"]

logger = logging.getLogger("interlace")
_FILES = ("weights.safetensors", "optimizer.safetensors")
_KEPT = 2


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run needs to go on: float32 weights, optimiser tensors, plain facts such as step."""

    weights: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    facts: dict[str, Any]


def save_state(folder: Path, state: RunState) -> Path:
    """Write `state` as `folder`/step-N and remove all but the last two checkpoints.

    Args:
        folder: made when missing.
        state: `facts["step"]` names the checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"step-{state.facts['step']:08d}"
    temporary = folder / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for name, tensors in zip(_FILES, (state.weights, state.optimizer), strict=True):
        save_file(
            {key: value.detach().contiguous() for key, value in tensors.items()}, temporary / name
        )
    files = {name: _fingerprint(temporary / name) for name in _FILES}
    text = json.dumps({"format": 1, **state.facts, "files": files}, indent=1)
    (temporary / "state.json").write_text(text, encoding="utf-8")
    for path in temporary.iterdir():
        _sync(path)
    if final.exists():
        shutil.rmtree(final)
    temporary.replace(final)
    _sync(folder)
    for old in _checkpoints(folder)[:-_KEPT]:
        shutil.rmtree(old)
    return final


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint in `folder`; damaged ones are passed over with a warning."""
    for path in reversed(_checkpoints(folder)):
        problem = _problem(path)
        if problem is None:
            return path
        logger.warning("checkpoint %s is passed over: %s", path.name, problem)
    return None


def load_state(path: Path) -> RunState:
    """Read one checkpoint.

    Raises:
        CheckpointError: a file that is missing, cut short or changed.
    """
    problem = _problem(path)
    if problem is not None:
        raise CheckpointError(
            f"the training checkpoint {path} must be whole: {problem}; use an older one."
        )
    facts = json.loads((path / "state.json").read_text(encoding="utf-8"))
    try:
        weights, optimizer = (load_file(path / name) for name in _FILES)
    except SafetensorError as error:
        raise CheckpointError(f"the training checkpoint {path} cannot be read: {error}.") from error
    return RunState(weights, optimizer, facts)


def random_state() -> Tensor:
    """The state of PyTorch's CPU generator, as a tensor that can be saved."""
    return torch.get_rng_state()


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def _problem(path: Path) -> str | None:
    try:
        facts = json.loads((path / "state.json").read_text(encoding="utf-8"))
        files = {name: facts["files"][name] for name in _FILES}
        _ = facts["step"] + 0
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"state.json is missing or not whole ({error.__class__.__name__})"
    for name in _FILES:
        if not (path / name).is_file():
            return f"{name} is missing"
        if files.get(name) != _fingerprint(path / name):
            return f"{name} is not the file that was written"
    return None


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return {
            "size": path.stat().st_size,
            "sha256": hashlib.file_digest(stream, "sha256").hexdigest(),
        }


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

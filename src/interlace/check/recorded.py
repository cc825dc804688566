"""Logits on file, to compare machines, versions and other implementations.

A safetensors file:

    tokens   int64 [B, T]                   what was read
    logits   float [B, T, vocab]            after each token
    metadata format = interlace-logits, version = 1, dtype = of the weights that made them

Written whole or not at all.
"""

import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from interlace.checkpoints.headers import read_header
from interlace.checkpoints.tensors import LOADED_DTYPES, TORCH_DTYPES, is_finite
from interlace.errors import CheckpointError, InputError
from interlace.models import HybridLM
from interlace.shapes import Float, Int, Tensor

__all__ = ["Recording", "check_target", "read_recording", "record", "write_recording"]

_FORMAT = "interlace-logits"
_VERSION = 1
_INTEGERS = ("I64", "I32")


@dataclass(frozen=True, slots=True)
class Recording:
    """Logits and the tokens that they belong to.

    Args:
        tokens: ids.
        logits: after each token.
        dtype: of the weights that made them.
    """

    tokens: Int[Tensor, "B T"]
    logits: Float[Tensor, "B T vocab"]
    dtype: torch.dtype

    @property
    def rows(self) -> list[Tensor]:
        """The logits `[T, vocab]` of each row."""
        return list(self.logits.unbind(0))


def read_recording(path: str | Path, vocab_size: int) -> Recording:
    """Read a file of logits.

    Args:
        path: of the file.
        vocab_size: that the logits must have and the ids must lie below.

    Raises:
        CheckpointError: a damaged file, or one of another form, version or vocabulary.
    """
    file = Path(path)
    headers = read_header(file)
    if set(headers) != {"tokens", "logits"}:
        raise CheckpointError(
            f"{file} must hold the tensors tokens and logits and nothing else, got "
            f"{', '.join(list(headers)[:4])}; write one with interlace check --record."
        )
    with safe_open(file, framework="pt") as stream:
        metadata = stream.metadata() or {}
    _check_metadata(file, metadata)
    tokens, logits = headers["tokens"], headers["logits"]
    shape = (*tokens.shape, vocab_size)
    wrong_kind = tokens.dtype not in _INTEGERS or logits.dtype not in TORCH_DTYPES
    if wrong_kind or len(tokens.shape) != 2 or 0 in tokens.shape or logits.shape != shape:
        raise CheckpointError(
            f"{file} must hold integers tokens [B, T] and floating logits [B, T, {vocab_size}], "
            f"got {tokens.dtype} {list(tokens.shape)} and {logits.dtype} {list(logits.shape)}; it "
            "was recorded with another model."
        )
    with safe_open(file, framework="pt") as stream:
        ids, values = stream.get_tensor("tokens").long(), stream.get_tensor("logits")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        raise CheckpointError(
            f"{file} must hold ids in 0..{vocab_size - 1}, got {low if low < 0 else high}; it was "
            "recorded with another model."
        )
    if not is_finite(values):
        raise CheckpointError(f"{file} holds logits that are not finite; record them again.")
    return Recording(ids, values, LOADED_DTYPES[metadata["dtype"]])


def check_target(path: str | Path) -> None:
    """Refuse a file that cannot be written, or that holds something else, before any work.

    Raises:
        InputError: the folder is missing, or the file exists and is no recording.
    """
    file = Path(path)
    if not file.parent.is_dir():
        raise InputError(f"the logits must go into a folder that exists, not {file.parent}.")
    if not file.exists():
        return
    mine = False
    if file.is_file() and set(read_header(file)) == {"tokens", "logits"}:
        with safe_open(file, framework="pt") as stream:
            mine = (stream.metadata() or {}).get("format") == _FORMAT
    if not mine:
        raise InputError(
            f"{file} exists and holds no recorded logits; name another file or remove it."
        )


def record(lm: HybridLM, tokens: Int[Tensor, "B T"]) -> Recording:
    """The logits of `lm` for these rows, each in a call of its own."""
    with torch.no_grad():
        logits = torch.cat([lm(row[None]) for row in tokens])
    return Recording(tokens, logits, lm.lm_head.weight.dtype)


def write_recording(path: str | Path, recording: Recording) -> None:
    """Write logits, replacing a file only when the new one is complete.

    Raises:
        InputError: see `check_target`.
    """
    check_target(path)
    file = Path(path).absolute()
    temporary = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}.tmp")
    tensors = {
        "tokens": recording.tokens.cpu().contiguous(),
        "logits": recording.logits.cpu().contiguous(),
    }
    metadata = {
        "format": _FORMAT,
        "version": str(_VERSION),
        "dtype": str(recording.dtype).removeprefix("torch."),
    }
    try:
        save_file(tensors, temporary, metadata=metadata)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _check_metadata(file: Path, metadata: dict[str, str]) -> None:
    if metadata.get("format") != _FORMAT:
        raise CheckpointError(
            f"{file} must have the metadata format = {_FORMAT}, version = {_VERSION} and dtype, "
            f"got {json.dumps(metadata)[:120]}; write one with interlace check --record."
        )
    version = metadata.get("version", "")
    if not version.isdigit() or not 1 <= int(version) <= _VERSION:
        raise CheckpointError(
            f"{file} must be of format version {_VERSION}, got {version[:20]!r}; a newer version "
            "of interlace may read it."
        )
    if metadata.get("dtype") not in LOADED_DTYPES:
        raise CheckpointError(
            f"{file} must name the dtype of the weights in its metadata, one of "
            f"{', '.join(LOADED_DTYPES)}, got {metadata.get('dtype', 'none')[:20]!r}."
        )

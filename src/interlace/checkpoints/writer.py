"""Writing a model as a checkpoint folder in the published layout.

    config.json    model.safetensors                                     a model of one shard
    config.json    model-00001-of-0000N.safetensors, ...   and an index  a larger one

The layout is that of Kimi Linear where its class can express the model, and K3's otherwise, with
the published dtypes (`interlace.checkpoints.names`). Everything is written into a hidden folder
beside the target, which takes the target's name when it is whole: a reader sees the old checkpoint
or the new one. One tensor at a time is converted; no second copy of the model is made.
"""

import json
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from interlace.checkpoints.headers import (
    CONFIG_FILE,
    DTYPE_BYTES,
    INDEX_FILE,
    SINGLE_FILE,
    is_checkpoint_file,
    listed,
    pack_header,
)
from interlace.checkpoints.names import PACKED, SCALE, TensorSpec, tensor_table
from interlace.checkpoints.readers import readers
from interlace.checkpoints.tensors import FILE_DTYPES, as_dtype, is_finite, raw_bytes
from interlace.config import HybridConfig
from interlace.config.presets import K3_QUANTIZATION
from interlace.config.sizes import packs_experts
from interlace.errors import CheckpointError, InputError
from interlace.layers.packed import check_quantization
from interlace.models import HybridLM
from interlace.ops.mxfp4 import quantize, unpack
from interlace.shapes import Tensor

__all__ = ["Saved", "TensorSource", "save", "write_folder"]

log = logging.getLogger("interlace")


@dataclass(frozen=True, slots=True)
class Saved:
    """What was written.

    Args:
        folder: the checkpoint.
        files: names of its files.
        num_tensors: tensors in them.
        num_bytes: bytes of all tensors, headers aside.
        readers: who else can read it, as far as it was tried.
    """

    folder: Path
    files: tuple[str, ...]
    num_tensors: int
    num_bytes: int
    readers: tuple[str, ...]


def save(
    lm: HybridLM,
    path: str | Path,
    max_shard_bytes: int | float = 5e9,
    dtype: str | torch.dtype | None = None,
    experts: str | None = None,
) -> Saved:
    """Write `lm` to the folder `path`.

    Args:
        lm: the model; it is not changed.
        path: a folder that does not exist, is empty, or holds a checkpoint and nothing else; that
            one is replaced.
        max_shard_bytes: bytes of tensors in one file; a larger tensor has a file of its own.
        dtype: of the matrices on disk, and of the config; the model's when None. `A_log` and
            `dt_bias` are never narrower than float32.
        experts: "mxfp4" packs the routed experts, rounding them where they are not packed yet;
            "plain" writes them in `dtype`. None writes them as the model holds them.

    Returns:
        Files, sizes, and who else can read them (also logged).

    Raises:
        InputError: an unknown dtype or form of experts, or a shard size below 1.
        ConfigError: experts to pack whose rows are no multiple of 32.
        CheckpointError: a target that holds anything else, or a tensor that is not finite.
    """
    name, _ = as_dtype(lm.lm_head.weight.dtype if dtype is None else dtype)
    config = _with_experts(lm.config.replace(dtype=name), experts)
    if not isinstance(max_shard_bytes, int | float) or not max_shard_bytes >= 1:
        raise InputError(f"max_shard_bytes must be at least 1, got {max_shard_bytes!r}.")
    return write_folder(config, _Tensors(lm.state_dict()), path, max_shard_bytes)


@runtime_checkable
class TensorSource(Protocol):
    """Where the tensors of a checkpoint come from, one at a time."""

    def get(self, name: str, spec: TensorSpec) -> Tensor:
        """The tensor `spec.memory`, in any dtype; its name in the files is `name`."""
        ...


def write_folder(
    config: HybridConfig,
    tensors: TensorSource,
    path: str | Path,
    max_shard_bytes: int | float = 5e9,
    add_files: Callable[[Path], None] | None = None,
) -> Saved:
    """Write a checkpoint of `config` whose tensors come from `tensors`, whole or not at all.

    Args:
        config: the model.
        tensors: asked for each tensor once, in the order of the files.
        path: as of `save`.
        max_shard_bytes: as of `save`.
        add_files: writes further files into the folder that it is given.

    Raises:
        CheckpointError: as `save`.
    """
    folder = Path(path).absolute()
    temporary = folder.parent / f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        _check_target(folder)
        temporary.mkdir(parents=True)
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder} must be a folder that can be made, but is not: {error}; name another."
        ) from error
    try:
        if add_files is not None:
            add_files(temporary)
        names = _write(tensors, config, temporary, max_shard_bytes)
        _sync(temporary)
        _take_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    table = tensor_table(config)
    size = sum(_nbytes(spec) for spec in table.values())
    saved = Saved(folder, names, len(table), size, readers(config))
    others = ", ".join(saved.readers) or "nobody else that we know"
    log.info("saved %d tensors, %d bytes to %s; read by: %s", len(table), size, folder, others)
    return saved


def _with_experts(config: HybridConfig, experts: str | None) -> HybridConfig:
    """The config of what is written."""
    if experts not in (None, "mxfp4", "plain"):
        raise InputError(f"experts must be 'mxfp4', 'plain' or None, got {experts!r}.")
    if experts == "plain":
        return config.replace(quantization=None)
    if experts == "mxfp4" and not packs_experts(config):
        if config.num_experts is None:
            raise InputError(
                "experts='mxfp4' packs routed experts, and this model has none; leave it out."
            )
        config = config.replace(quantization=K3_QUANTIZATION)
        check_quantization(config)
    return config


# -- files


def _write(
    tensors: TensorSource, config: HybridConfig, folder: Path, max_shard_bytes: int | float
) -> tuple[str, ...]:
    shards = list(_shards(tensor_table(config), max_shard_bytes))
    names = [SINGLE_FILE]
    if len(shards) > 1:
        names = [
            f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)
        ]
    for name, shard in zip(names, shards, strict=True):
        _write_shard(folder / name, shard, tensors)
    if len(shards) > 1:
        weights = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        size = sum(_nbytes(spec) for shard in shards for spec in shard.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weights.items()))}
        _write_json(folder / INDEX_FILE, index)
        names.append(INDEX_FILE)
    # last: without it the folder is no checkpoint
    _write_json(folder / CONFIG_FILE, config.to_dict())
    return (CONFIG_FILE, *names)


def _shards(
    table: dict[str, TensorSpec], max_shard_bytes: int | float
) -> Iterator[dict[str, TensorSpec]]:
    shard: dict[str, TensorSpec] = {}
    size = 0
    for name, spec in table.items():
        if shard and size + _nbytes(spec) > max_shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = spec
        size += _nbytes(spec)
    yield shard


class _Tensors:
    """The tensors of a model as a file wants them: experts packed or plain."""

    def __init__(self, held: dict[str, Tensor]) -> None:
        self.held = held
        self._packed: tuple[str, dict[str, Tensor]] = ("", {})

    def get(self, name: str, spec: TensorSpec) -> Tensor:
        """The tensor `spec.memory`, packed or expanded where the model holds the other form."""
        if spec.memory in self.held:
            return self.held[spec.memory]
        stem, end = spec.memory.rsplit(".", 1)
        if stem + PACKED in self.held:
            packed, scale = self.held[stem + PACKED], self.held[stem + SCALE]
            return unpack(packed, scale, FILE_DTYPES[spec.dtype])
        if self._packed[0] != stem:
            weight = self.held[stem + ".weight"].detach()
            if not is_finite(weight):
                raise CheckpointError(
                    f"{name} must be finite to be packed, but is not; nothing was written."
                )
            codes, scale = quantize(weight)
            self._packed = stem, {PACKED: codes, SCALE: scale}
        return self._packed[1]["." + end]


def _write_shard(file: Path, shard: dict[str, TensorSpec], tensors: TensorSource) -> None:
    # wide dtypes first, so that every tensor starts at a multiple of its own
    order = sorted(shard, key=lambda name: -DTYPE_BYTES[shard[name].dtype])
    header, _ = pack_header({name: (shard[name].dtype, shard[name].shape) for name in order})
    with file.open("wb") as stream:
        stream.write(header)
        for name in order:
            value = _stored(name, tensors.get(name, shard[name]), shard[name])
            stream.write(raw_bytes(value))
        stream.flush()
        os.fsync(stream.fileno())


def _stored(name: str, value: Tensor, spec: TensorSpec) -> Tensor:
    """A tensor as its file holds it, flat, on the CPU."""
    stored = value.detach().to(device="cpu", dtype=FILE_DTYPES[spec.dtype]).flatten()
    if not is_finite(stored):
        raise CheckpointError(
            f"{name} must be finite to be saved as {spec.dtype}, but is not; nothing was written."
        )
    padding = prod(spec.shape) - stored.numel()
    if padding:
        stored = torch.cat([stored, stored.new_zeros(padding)])
    return stored.contiguous()


def _write_json(file: Path, content: object) -> None:
    with file.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(content, indent=2) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _nbytes(spec: TensorSpec) -> int:
    return prod(spec.shape) * DTYPE_BYTES[spec.dtype]


# -- the target


def _check_target(folder: Path) -> None:
    """Refuse to replace anything that `save` did not write."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir() or folder.is_symlink():
        raise CheckpointError(f"{folder} must be a folder to save to, but is none; name another.")
    foreign = sorted(path.name for path in folder.iterdir() if not is_checkpoint_file(path.name))
    if foreign:
        raise CheckpointError(
            f"{folder} holds {listed(foreign)}, which saving would remove; name a new or an "
            "empty folder."
        )


def _take_place(temporary: Path, folder: Path) -> None:
    if not folder.exists():
        temporary.rename(folder)
    else:
        old = temporary.with_suffix(".old")
        folder.rename(old)
        try:
            temporary.rename(folder)
        except OSError:
            old.rename(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    _sync(folder.parent)


def _sync(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

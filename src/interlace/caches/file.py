"""A cache as one safetensors file.

    __metadata__            format, version, and the identity of the model that filled the cache
    lengths                 [B]         tokens of each row
    layers.I.latent         [B, M, R + P]   of a global layer; M is the longest row
    layers.I.state, .conv_q, .conv_k, .conv_v   of a KDA layer, as `DeltaState` names them
    snapshots.lengths       [snapshots, B]
    snapshots.S.layers.I.*  the delta states of snapshot S
    prompt.*                what a prompt cache adds

What is written is what was written to the cache, not what it reserved. A file is written beside its
target and takes the target's name when it is whole; nothing in it is a pickle. It is read only by
the model that filled it: with other weights the same numbers mean nothing.
"""

import json
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open

from interlace.caches.latent import LatentCache
from interlace.errors import CacheError
from interlace.shapes import Tensor

if TYPE_CHECKING:
    from interlace.caches.hybrid import HybridCache

__all__ = ["FORMAT", "VERSION", "ModelIdentity", "read_cache", "save_cache"]

FORMAT = "interlace-cache"
VERSION = 1

_PROMPT = "prompt."
_LENGTHS = "lengths"
_KEPT = "snapshots.lengths"
_DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
}


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model filled a cache.

    Args:
        config: SHA-256 of its config, the dtype aside.
        dtype: of its weights.
        weights: SHA-256 of the config and of every tensor's name, dtype, shape and first 4 KiB.
    """

    config: str
    dtype: str
    weights: str


# -- writing


def save_cache(
    cache: "HybridCache",
    path: str | Path,
    identity: ModelIdentity,
    prompt: Mapping[str, Tensor] | None = None,
) -> None:
    """Write `cache` to the file `path`, which is replaced when the new one is whole.

    Args:
        cache: a whole one; it is not changed.
        path: the file, in a folder that exists.
        identity: of the model that filled it.
        prompt: int64 tensors to store beside it.

    Raises:
        CacheError: a target that is no file, or a folder that cannot be written.
    """
    file = Path(path).absolute()
    tensors = _named(cache)
    tensors.update({_PROMPT + name: value for name, value in (prompt or {}).items()})
    about = {"max_snapshots": cache.max_snapshots, **asdict(identity)}
    header = _header(tensors, {"format": FORMAT, "version": VERSION, **about})
    temporary = file.parent / f".{file.name}.{uuid.uuid4().hex[:8]}.tmp"
    try:
        if file.is_dir():
            raise CacheError(f"{file} must be a file to save a cache to, got a folder.")
        with temporary.open("wb") as stream:
            stream.write(header)
            for value in tensors.values():
                # a row is contiguous, so that writing rows makes no second cache
                for part in [value] if value.is_contiguous() else value:
                    stream.write(_raw(part))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError as error:
        raise CacheError(
            f"a cache cannot be saved to {file}: {error.strerror or error}; name another file."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _named(cache: "HybridCache") -> dict[str, Tensor]:
    """What of a cache is stored, by name; each of rank 1 at least."""
    lengths = cache.lengths.cpu()
    end = int(lengths.max())
    tensors = {_LENGTHS: lengths}
    for i, layer in enumerate(cache.layers):
        for name, value in layer.tensors.items():
            written = value[:, :end] if isinstance(layer, LatentCache) else value
            tensors[f"layers.{i}.{name}"] = written
    kept = cache._snapshots.items
    if kept:
        tensors[_KEPT] = torch.tensor([at for at, _ in kept], dtype=torch.int64)
    for place, (_, states) in enumerate(kept):
        for i, state in states.items():
            for name, value in state.tensors.items():
                tensors[f"snapshots.{place}.layers.{i}.{name}"] = value
    return tensors


def _header(tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {name: str(value) for name, value in about.items()}}
    end = 0
    for name, value in tensors.items():
        start, end = end, end + value.numel() * value.element_size()
        shape = list(value.shape)
        header[name] = {
            "dtype": _DTYPES[value.dtype],
            "shape": shape,
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _raw(value: Tensor) -> memoryview:
    flat = value.detach().cpu().contiguous().view(-1).view(torch.uint8)
    view: memoryview = flat.numpy().data
    return view


# -- reading


def read_cache(
    path: str | Path, new: Callable[..., "HybridCache"], identity: ModelIdentity, capacity: int = 0
) -> tuple["HybridCache", dict[str, Tensor]]:
    """The cache in the file `path`, and the int64 tensors of a prompt cache beside it.

    Args:
        path: what `save_cache` wrote.
        new: makes an empty cache of the model, as `HybridLM.new_cache` does.
        identity: of the model, which must be the one that filled the cache.
        capacity: tokens to reserve per row; the longest row at least.

    Raises:
        CacheError: no such file, one that is no cache, damaged, of a newer format or of another
            model. Nothing is returned in part.
    """
    file = Path(path)
    if not file.is_file():
        raise CacheError(f"{file} must be a saved cache, but is no file; name another.")
    try:
        with safe_open(file, framework="pt") as stored:
            return _Reader(file, stored).read(new, identity, capacity)
    except SafetensorError as error:
        raise CacheError(
            f"{file} must be a whole cache file, but is truncated or damaged ({error}); read the "
            "prompt again and save a new one."
        ) from error
    except OSError as error:
        raise CacheError(f"{file} cannot be read: {error.strerror or error}.") from error


class _Reader:
    """One open file."""

    def __init__(self, file: Path, stored: Any) -> None:
        self.file = file
        self.stored = stored
        self.about: dict[str, str] = stored.metadata() or {}
        self.names: set[str] = set(stored.keys())

    def read(
        self, new: Callable[..., "HybridCache"], identity: ModelIdentity, capacity: int
    ) -> tuple["HybridCache", dict[str, Tensor]]:
        self._check_format()
        self._check_model(identity)
        lengths = self._lengths()
        end = int(lengths.max())
        cache = new(
            len(lengths),
            capacity=max(capacity, end),
            dtype=self._dtype(),
            max_snapshots=self._count("max_snapshots"),
        )
        kept = self._kept(lengths)
        self._check_tensors(cache, end, len(kept))
        uniform = int(lengths.min()) == end
        rows = None if uniform else lengths.to(cache.device)
        for i, layer in enumerate(cache.layers):
            if isinstance(layer, LatentCache):
                layer.append(self._layer(f"layers.{i}.", layer)["latent"], lengths=rows)
            else:
                layer.update(**self._layer(f"layers.{i}.", layer))
        cache.advance(end, rows)
        for place, at in enumerate(kept):
            states = {}
            for i, layer in cache._states.items():
                states[i] = layer.clone()
                states[i].update(**self._layer(f"snapshots.{place}.layers.{i}.", layer))
            cache._snapshots.keep(at, states)
        prompt = {
            name.removeprefix(_PROMPT): self._get(name)
            for name in sorted(self.names)
            if name.startswith(_PROMPT)
        }
        return cache, prompt

    def _check_format(self) -> None:
        if self.about.get("format") != FORMAT:
            raise CacheError(
                f"{self.file} must be a cache that Interlace saved, but is another safetensors "
                "file; name a file that cache.save or --cache wrote."
            )
        version = self._count("version")
        if version > VERSION:
            raise CacheError(
                f"{self.file} must be of cache format {VERSION} at most, got {version}; read it "
                "with a newer version of Interlace."
            )

    def _check_model(self, identity: ModelIdentity) -> None:
        for what, mine in asdict(identity).items():
            theirs = self.about.get(what)
            if mine == theirs:
                continue
            said = {
                "config": "a model of another config",
                "dtype": f"weights in {theirs}, and this model has {mine}",
                "weights": "a model of the same config with other weights",
            }[what]
            raise CacheError(
                f"{self.file} must be a cache of this model, but was filled by {said}; load the "
                "model that filled it, or read the prompt again."
            )

    def _lengths(self) -> Tensor:
        lengths = self._get(_LENGTHS) if _LENGTHS in self.names else torch.empty(0)
        fits = lengths.dtype == torch.int64 and lengths.ndim == 1 and lengths.numel() > 0
        if not fits or int(lengths.min()) < 0:
            raise self._damaged(f"{_LENGTHS} is no list of token counts")
        return lengths

    def _kept(self, lengths: Tensor) -> list[list[int]]:
        if _KEPT not in self.names:
            return []
        kept = self._get(_KEPT)
        fits = kept.dtype == torch.int64 and kept.ndim == 2 and kept.shape[1:] == lengths.shape
        if not fits or bool(((kept < 0) | (kept > lengths)).any()):
            raise self._damaged(f"{_KEPT} does not fit {_LENGTHS}")
        values: list[list[int]] = kept.tolist()
        return values

    def _dtype(self) -> torch.dtype:
        """Of latents and windows; that all have it is checked with the shapes."""
        named = {name: dtype for dtype, name in _DTYPES.items() if dtype.is_floating_point}
        for name in sorted(self.names):
            if name.endswith((".latent", ".conv_q")):
                stored = str(self.stored.get_slice(name).get_dtype())
                if stored not in named:
                    raise self._damaged(f"{name} is {stored}, not one of {', '.join(named)}")
                return named[stored]
        raise self._damaged("it holds no layer")

    def _check_tensors(self, cache: "HybridCache", end: int, snapshots: int) -> None:
        """Refuse a tensor that is missing, unknown, or of another shape or dtype."""
        wanted: dict[str, tuple[list[int], torch.dtype]] = {}
        for i, layer in enumerate(cache.layers):
            for name, value in layer.tensors.items():
                shape = list(value.shape)
                if isinstance(layer, LatentCache):
                    shape[1] = end
                wanted[f"layers.{i}.{name}"] = shape, value.dtype
                for place in range(0 if isinstance(layer, LatentCache) else snapshots):
                    wanted[f"snapshots.{place}.layers.{i}.{name}"] = shape, value.dtype
        held = {name for name in self.names if not name.startswith(_PROMPT)}
        held -= {_LENGTHS, _KEPT}
        for name in sorted(wanted.keys() ^ held):
            raise self._damaged(f"it lacks {name}" if name in wanted else f"it holds {name}")
        for name, (shape, dtype) in wanted.items():
            part = self.stored.get_slice(name)
            came = (list(part.get_shape()), str(part.get_dtype()))
            if came != (shape, _DTYPES[dtype]):
                raise self._damaged(f"{name} is {came[1]} {came[0]}, not {_DTYPES[dtype]} {shape}")

    def _layer(self, prefix: str, layer: Any) -> dict[str, Tensor]:
        return {name: self._get(prefix + name).to(layer.device) for name in layer.tensors}

    def _get(self, name: str) -> Tensor:
        value: Tensor = self.stored.get_tensor(name)
        return value

    def _count(self, name: str) -> int:
        text = self.about.get(name, "")
        if not text.isdecimal() or int(text) < 1:
            raise self._damaged(f"its {name} is {text!r}")
        return int(text)

    def _damaged(self, what: str) -> CacheError:
        return CacheError(
            f"{self.file} must be a whole cache file, but {what}; read the prompt again and save a "
            "new one."
        )

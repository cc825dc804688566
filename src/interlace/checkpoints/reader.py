"""Opening a checkpoint folder as a model.

    config.json -> HybridConfig -> tensors it implies --+
    headers of all files --------------------------------+-> refused here, or
                                                         |
    model without memory <- one tensor after the other --+   mapped, or read and converted

All names and shapes are checked before the first weight is read. A tensor that is stored in the
dtype it has in memory stays a private view of the mapped file, with a storage of its own size; any
other is read and converted alone. So the peak is the model plus one tensor. Nothing is initialised:
what is not in the files is an error, not random. Packed experts (`.weight_packed` and its scales)
are mapped as they are, or expanded on request; what a config says that it ignores is not asked.

Dtypes: the matrices take the dtype that was asked for; `A_log`, `dt_bias` and the router's
correction bias stay in float32 when that is wider, and so do the convolutions and `o_norm` of K3's
layout (`interlace.layers.precision`). The router's weight is kept like any matrix and widened where
it is used.
"""

import logging
import mmap
import warnings
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

from interlace.checkpoints.headers import FolderHeaders, TensorHeader, listed, read_folder
from interlace.checkpoints.hub import fetch_small, fetch_weights, hub_id
from interlace.checkpoints.inspect import BUNDLED_FOLDER, complaint, find_folder
from interlace.checkpoints.names import EMBEDDING, HEAD, PACKED, SCALE, Match, match
from interlace.checkpoints.tensors import (
    FILE_DTYPES,
    LOADED_DTYPES,
    TORCH_DTYPES,
    as_dtype,
    is_finite,
    raw_bytes,
)
from interlace.config import PRESETS, HybridConfig
from interlace.config.sizes import expert_slots, packs_experts
from interlace.errors import CheckpointError, InputError
from interlace.layers.expert_cache import ExpertCache
from interlace.layers.moe import MoE
from interlace.layers.packed import check_quantization
from interlace.models import HybridLM
from interlace.ops.mxfp4 import LARGEST_SCALE, unpack
from interlace.shapes import Tensor
from interlace.text import load_tokenizer

__all__ = ["load"]

log = logging.getLogger("interlace")

EXPERTS = ("packed", "expanded", "disk")
"""How routed experts that a checkpoint packs can be held."""


def load(
    path: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    *,
    revision: str | None = None,
    tokenizer: bool = True,
    experts: str | None = None,
    expert_cache: int | None = None,
) -> HybridLM:
    """The model of a checkpoint in the published layout of `kimi_linear` or `kimi_k3`.

    Its `tokenizer` is the folder's (`interlace.text.load_tokenizer`).

    Args:
        path: a folder, "default" for the bundled model, or "owner/name" of a model on the Hub,
            which is fetched once and then read from the local cache.
        dtype: of the weights, except those that stay in float32; None takes the config's.
        device: where the weights go. On "cpu" they may be views of the files, copied when they are
            written to.
        revision: branch, tag or commit of a model on the Hub.
        tokenizer: False leaves `lm.tokenizer` None, for ids alone: then no tokenizer file is read
            and no package for it is needed.
        experts: "packed" keeps packed experts as they are stored and multiplies from that form;
            "expanded" makes plain weights of them; "disk" leaves them in the files, for models
            that do not fit, and keeps those used last. None takes them as they are stored.
        expert_cache: bytes for the experts that "disk" keeps; as many as one token visits when
            None.

    Raises:
        ConfigError: a config that cannot be read, or one of weights quantised in another way.
        CheckpointError: no such folder, a damaged file, or a tensor that is missing, unexpected,
            mis-shaped, not finite or of a dtype that does not belong there; packed weights where
            the config has none, or none where it has them; a broken tokenizer file.
        InputError: an unknown dtype, a revision of a folder, packed experts asked of a checkpoint
            that has none, or experts on disk beside another device than the CPU.
        MissingExtra: the package for the folder's tokenizer, or for the Hub, is not installed.
    """
    wanted = None if dtype is None else as_dtype(dtype)[1]
    if experts is not None and experts not in EXPERTS:
        raise InputError(f"experts must be one of {', '.join(EXPERTS)} or None, got {experts!r}.")
    if experts == "disk" and torch.device(device).type != "cpu":
        raise InputError(
            f"experts='disk' computes on the CPU, got the device {device}; leave it out."
        )
    if expert_cache is not None and experts != "disk":
        raise InputError(f"expert_cache needs experts='disk', got {experts!r}; leave it out.")
    remote = hub_id(path)
    if remote is not None:
        repo, named = remote
        folder = fetch_small(repo, revision or named)
    elif revision is not None:
        raise InputError(
            f"revision is of a model on the Hub, and {str(path)!r} is none; leave it out."
        )
    else:
        folder = _find(path)
    config = HybridConfig.from_pretrained(folder)
    check_quantization(config)
    if experts not in (None, "expanded") and not packs_experts(config):
        raise InputError(
            f"experts={experts!r} needs a checkpoint with packed experts, and {folder} has none; "
            "leave it out, or pack them with interlace.save(lm, path, experts='mxfp4')."
        )
    slots = expert_slots(config, expert_cache) if experts == "disk" else 0
    text = load_tokenizer(folder) if tokenizer else None
    if remote is not None:
        fetch_weights(repo, folder)
    headers = read_folder(folder)
    found = match(config, headers.tensors)
    _check(folder, headers, found)
    if found.skipped:
        log.info("skipped %d vision tensors: %s", len(found.skipped), listed(found.skipped))
    if experts == "expanded":
        config = config.replace(quantization=None)
    with torch.device("meta"):
        lm = HybridLM(config)
    lm = lm.to(wanted or LOADED_DTYPES[config.dtype])
    with ExitStack() as stack:
        on_disk = experts == "disk"
        source = _Source(stack, torch.device(device), headers.files, on_disk)
        for memory, name in found.sources.items():
            if experts == "expanded" and memory.endswith(PACKED):
                _expand(lm, memory.removesuffix(PACKED), source, headers, found)
            elif experts != "expanded" or not memory.endswith(SCALE):
                owner, attribute = _owner(lm, memory)
                empty = getattr(owner, attribute)
                value = _shaped(source.read(headers.tensors[name], name, empty.dtype), empty, name)
                _put(owner, attribute, value)
        if config.tie_word_embeddings:
            lm.lm_head.weight = lm.model.embed_tokens.weight
            if found.tied_head is not None:
                _check_tied_head(lm, source, headers.tensors[found.tied_head], found.tied_head)
    _check_whole(lm)
    if experts == "disk":
        _share_cache(lm, slots)
    lm.tokenizer = text
    return lm


# -- before any weight is read


def _find(path: str | Path) -> Path:
    folder = Path(path)
    if folder.is_dir():
        return find_folder(folder)
    if str(path) == "default":
        if not BUNDLED_FOLDER.is_dir():
            raise CheckpointError(
                "the bundled model is missing from this installation; install it again, or name a "
                "checkpoint folder."
            )
        return find_folder(BUNDLED_FOLDER)
    if str(path) in PRESETS:
        raise CheckpointError(
            f"{path} is a preset and no folder; interlace.build({str(path)!r}) makes one with "
            "random weights."
        )
    return find_folder(folder)


def _check(folder: Path, headers: FolderHeaders, found: Match) -> None:
    wrong = complaint(found)
    if wrong is not None:
        raise CheckpointError(f"{folder} does not fit its config: it {wrong}.")
    bytes_or_not = [(n, came, due) for n, came, due in found.retyped if "U8" in (came, due)]
    if bytes_or_not:
        _, came, due = bytes_or_not[0]
        raise CheckpointError(
            f"{listed(n for n, *_ in bytes_or_not)} in {folder} must be {due}, got {came}; packed "
            "weights and their scales are bytes (U8), and nothing else is."
        )
    ends = (PACKED, SCALE)
    used = [name for memory, name in found.sources.items() if not memory.endswith(ends)]
    used += [found.tied_head] if found.tied_head else []
    others = [name for name in used if headers.tensors[name].dtype not in TORCH_DTYPES]
    if others:
        shown = (f"{name} is {headers.tensors[name].dtype}" for name in others)
        raise CheckpointError(
            f"the tensors of {folder} must be {', '.join(TORCH_DTYPES)}, but {listed(shown)}; "
            "quantised weights cannot be read without their scales."
        )


# -- one tensor after the other


class _Source:
    """The bytes of the files: mapped where they can stay as they are, read where they cannot.

    Where experts stay on disk their files are mapped to be read only, so that a system counts no
    memory for them, and everything else is read.
    """

    def __init__(
        self, stack: ExitStack, device: torch.device, files: Iterable[Path], on_disk: bool = False
    ) -> None:
        self.device, self.on_disk = device, on_disk
        self.streams: dict[Path, BinaryIO] = {}
        self.mappings: dict[Path, mmap.mmap] = {}
        for file in files:
            self.streams[file] = stack.enter_context(file.open("rb"))

    def read(self, header: TensorHeader, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor in `dtype` on the device, refused when it is not finite."""
        stored = FILE_DTYPES[header.dtype]
        mapped = stored == dtype and header.start % dtype.itemsize == 0
        mapped = mapped and (not self.on_disk or dtype == torch.uint8)
        value = (self._map if mapped else self._copy)(header, stored).view(header.shape)
        if name.endswith(SCALE):
            _check_scale(header, name, value)
        result = value.to(device=self.device, dtype=dtype)
        if not is_finite(result):
            if is_finite(value):
                raise CheckpointError(
                    f"{header.file}: {name} does not fit {dtype}; load it in a wider dtype."
                )
            raise CheckpointError(
                f"{header.file}: {name} holds values that are not finite; the file is damaged, or "
                "the training run that wrote it had diverged."
            )
        return result

    def _map(self, header: TensorHeader, dtype: torch.dtype) -> Tensor:
        if header.nbytes == 0:
            return torch.empty(0, dtype=dtype)
        file = header.file
        if file not in self.mappings:
            # private: writing to a weight copies its page and leaves the file alone
            access = mmap.ACCESS_READ if self.on_disk else mmap.ACCESS_COPY
            self.mappings[file] = mmap.mmap(self.streams[file].fileno(), 0, access=access)
        count = header.nbytes // dtype.itemsize
        with warnings.catch_warnings():
            # torch warns of memory that cannot be written: nothing writes to experts on disk
            warnings.filterwarnings("ignore", "The given buffer is not writable")
            return torch.frombuffer(
                self.mappings[file], dtype=dtype, count=count, offset=header.start
            )

    def _copy(self, header: TensorHeader, dtype: torch.dtype) -> Tensor:
        value = torch.empty(header.nbytes // dtype.itemsize, dtype=dtype)
        stream = self.streams[header.file]
        stream.seek(header.start)
        target = raw_bytes(value)
        while target:
            count = stream.readinto(target)  # type: ignore[attr-defined]
            if not count:
                raise CheckpointError(f"{header.file} became shorter while it was read.")
            target = target[count:]
        return value


def _check_scale(header: TensorHeader, name: str, value: Tensor) -> None:
    largest = int(value.max()) if value.numel() else 0
    if largest > LARGEST_SCALE:
        meaning = "255 means no number" if largest == 255 else "its weights would not be finite"
        raise CheckpointError(
            f"{header.file}: {name} must hold scales of at most {LARGEST_SCALE}, got {largest} "
            f"({meaning}); the file is damaged."
        )


def _expand(lm: HybridLM, stem: str, source: _Source, headers: FolderHeaders, found: Match) -> None:
    """Put the plain weight of one packed matrix into `lm`."""
    packed, scale = (
        source.read(headers.tensors[name], name, torch.uint8)
        for name in (found.sources[stem + PACKED], found.sources[stem + SCALE])
    )
    owner, attribute = _owner(lm, stem + ".weight")
    weight = unpack(packed, scale, getattr(owner, attribute).dtype)
    if not is_finite(weight):
        raise CheckpointError(
            f"{found.sources[stem + PACKED]} does not fit {weight.dtype}; load it in a wider dtype."
        )
    _put(owner, attribute, weight)


def _shaped(value: Tensor, empty: Tensor, name: str) -> Tensor:
    """The tensor in the shape it has in memory; only `A_log` and convolutions differ on disk."""
    if value.numel() > empty.numel():
        heads = empty.numel()
        if bool(value.flatten()[heads:].any()):
            raise CheckpointError(
                f"{name} must be zero behind its {heads} heads (it is padded to {value.numel()}), "
                "but is not; the config has too few heads."
            )
        return value.flatten()[:heads].clone()
    return value.view(empty.shape)


def _owner(lm: HybridLM, name: str) -> tuple[nn.Module, str]:
    parent, _, attribute = name.rpartition(".")
    return lm.get_submodule(parent), attribute


def _put(owner: nn.Module, attribute: str, value: Tensor) -> None:
    if attribute in owner._parameters:
        value = nn.Parameter(value)
    setattr(owner, attribute, value)


def _check_tied_head(lm: HybridLM, source: _Source, header: TensorHeader, name: str) -> None:
    embedding = lm.model.embed_tokens.weight
    if not torch.equal(source.read(header, name, embedding.dtype), embedding):
        raise CheckpointError(
            f"{header.file}: {name} must equal {EMBEDDING}, because the config ties them "
            "(tie_word_embeddings), but differs; correct the config."
        )


def _share_cache(lm: HybridLM, slots: int) -> None:
    layers = [module for module in lm.modules() if isinstance(module, MoE)]
    lm.expert_cache = ExpertCache(layers[0].experts[0], slots)
    for layer in layers:
        layer.expert_cache = lm.expert_cache


def _check_whole(lm: HybridLM) -> None:
    """Our own promise: the table of names is the module tree, so nothing is left without memory."""
    tensors = [*lm.named_parameters(), *lm.named_buffers()]
    empty = [name for name, value in tensors if value.is_meta and name != HEAD]
    assert not empty, f"no tensor was read for {listed(empty)}"

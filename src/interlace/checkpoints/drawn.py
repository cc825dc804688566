"""A complete checkpoint with random weights, written tensor by tensor: no model is ever built.

    preset -> config as published -> table of tensors -> each drawn, packed, written, dropped

Weights start as in training (`interlace.build`), each from a seed of its own name, so that no order
of writing changes them. K3's experts are packed, and a tokenizer with random merges lies beside.
"""

import logging
import math
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import torch

from interlace.checkpoints.names import PACKED, SCALE, TensorSpec, tensor_table
from interlace.checkpoints.writer import Saved, write_folder
from interlace.config import HybridConfig, preset
from interlace.config.presets import K3_QUANTIZATION
from interlace.config.sizes import checkpoint_bytes, describe_bytes
from interlace.errors import CheckpointError, InputError
from interlace.layers.packed import check_quantization
from interlace.ops.mxfp4 import quantize
from interlace.shapes import Tensor
from interlace.text.ranks import K3_MARKS, KIMI_MARKS, NUM_RESERVED, write_tokenizer

__all__ = ["draw_checkpoint", "drawn_config", "require_room"]

log = logging.getLogger("interlace")

# bytes of a header for one tensor, and of everything that is no tensor, generously
_PER_NAME, _REST = 200, 10_000_000
# the least vocabulary with bytes and all marks
_LEAST_VOCABULARY = 256 + NUM_RESERVED


def drawn_config(name: str) -> HybridConfig:
    """The config of the checkpoint that `draw_checkpoint` writes for a preset.

    That of the preset, with the experts of K3's layout packed, and with marks: a vocabulary too
    small for bytes and marks becomes 512, and ends that are not set are those of the marks.

    Raises:
        ConfigError: an unknown preset.
    """
    config = preset(name)
    if config.published_class == "kimi_k3" and config.num_experts is not None:
        config = config.replace(quantization=K3_QUANTIZATION)
        check_quantization(config)
    if config.vocab_size < _LEAST_VOCABULARY:
        config = config.replace(
            vocab_size=_LEAST_VOCABULARY, bos_token_id=None, eos_token_id=None, pad_token_id=None
        )
    first = config.vocab_size - NUM_RESERVED
    places = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": NUM_RESERVED - 1}
    unset = {n: first + p for n, p in places.items() if getattr(config, n) is None}
    return config.replace(**unset)


def require_room(config: HybridConfig, path: str | Path) -> None:
    """Refuse a checkpoint of `config` where the disk has not the room for it.

    Raises:
        CheckpointError: with what is needed and what there is.
    """
    folder = Path(path).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    # no table for a model that is refused by its tensors alone: it may have half a million names
    needed = checkpoint_bytes(config) + _REST
    if needed <= free:
        needed += _PER_NAME * len(tensor_table(config))
    if needed > free:
        raise CheckpointError(
            f"a checkpoint of {describe_bytes(needed)} must fit on the disk of {folder}, which has "
            f"{describe_bytes(free)} left; name a folder elsewhere."
        )


def draw_checkpoint(
    config: HybridConfig,
    path: str | Path,
    *,
    seed: int = 0,
    max_shard_bytes: int | float = 5e9,
    progress: Callable[[int], None] | None = None,
) -> Saved:
    """Write a checkpoint with random weights, as large as its largest tensor in memory.

    Args:
        config: the model, such as `drawn_config` gives.
        path: a folder that does not exist or is empty.
        seed: of the weights and of the tokenizer.
        max_shard_bytes: bytes of tensors in one file.
        progress: called with the bytes of each tensor that was drawn.

    Returns:
        What was written, the tokenizer's files aside.

    Raises:
        InputError: a seed out of range.
        CheckpointError: a folder with anything in it, or a disk without the room.
    """
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"seed must be an integer in 0..2^63-1, got {seed!r}.")
    folder = Path(path)
    if folder.is_dir() and any(folder.iterdir()):
        raise CheckpointError(f"{folder} must be empty or not there yet, but is not; name another.")
    require_room(config, path)
    marks = K3_MARKS if config.published_class == "kimi_k3" else KIMI_MARKS

    def add_tokenizer(where: Path) -> None:
        write_tokenizer(where, config.vocab_size, seed=seed, marks=marks)

    source = _Drawn(config, seed, progress)
    return write_folder(config, source, path, max_shard_bytes, add_tokenizer)


class _Drawn:
    """Start values by name (spec section 5, "Initialisation"), drawn when asked for."""

    def __init__(
        self, config: HybridConfig, seed: int, progress: Callable[[int], None] | None
    ) -> None:
        self.config, self.seed, self.progress = config, seed, progress
        self._scale: tuple[str, Tensor] | None = None

    def get(self, name: str, spec: TensorSpec) -> Tensor:
        """The values of one tensor."""
        value = self._value(spec)
        if self.progress is not None:
            self.progress(value.numel() * (1 if spec.dtype == "U8" else value.element_size()))
        return value

    def _value(self, spec: TensorSpec) -> Tensor:
        name = spec.memory
        if name.endswith(SCALE) and self._scale is not None:
            stem, scale = self._scale
            assert stem == name.removesuffix(SCALE), "codes and scales are written side by side"
            return scale
        if name.endswith(PACKED):
            rows, half = spec.shape
            codes, scale = quantize(self._normal(name, (rows, 2 * half)))
            self._scale = name.removesuffix(PACKED), scale
            return codes
        return self._plain(name, spec.shape)

    def _plain(self, name: str, shape: tuple[int, ...]) -> Tensor:
        config = self.config
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        if name.endswith(("_res_proj.weight", "e_score_correction_bias")):
            return torch.zeros(shape)
        if name.endswith("A_log"):
            heads = torch.empty(config.kda_num_heads)
            if config.gate_lower_bound is not None:
                return heads.zero_()
            return heads.uniform_(1, 16, generator=self._generator(name)).log()
        if name.endswith("dt_bias"):
            low, high = math.log(1e-3), math.log(1e-1)
            dt = torch.empty(shape).uniform_(low, high, generator=self._generator(name)).exp()
            return dt + torch.log(-torch.expm1(-dt))  # the inverse of softplus
        if name.endswith("conv1d.weight"):
            bound = shape[-1] ** -0.5
            return torch.empty(shape).uniform_(-bound, bound, generator=self._generator(name))
        return self._normal(name, shape)

    def _normal(self, name: str, shape: tuple[int, ...]) -> Tensor:
        std = self.config.initializer_range
        return torch.empty(shape).normal_(0, std, generator=self._generator(name))

    def _generator(self, name: str) -> torch.Generator:
        # of a seed, the generator on the CPU takes 32 bits
        return torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))

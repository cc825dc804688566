"""What a checkpoint folder holds, from its config and its headers alone.

No weight is read and no torch is loaded: a folder of terabytes answers in the time that its headers
take.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import NamedTuple

from interlace.checkpoints.headers import (
    CONFIG_FILE,
    DTYPE_BYTES,
    FolderHeaders,
    listed,
    read_folder,
)
from interlace.checkpoints.names import (
    EMBEDDING,
    HEAD,
    K3_PREFIX,
    PACKED,
    SCALE,
    Match,
    match,
    tensor_table,
)
from interlace.config import HybridConfig
from interlace.errors import CheckpointError

__all__ = [
    "BUNDLED_FOLDER",
    "Part",
    "Summary",
    "complaint",
    "find_folder",
    "implied",
    "inspect",
    "parts",
]

BUNDLED_FOLDER = Path(__file__).parents[1] / "bundled" / "default"
"""Where the bundled model `default` lies in an installation."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A checkpoint folder at a glance.

    Args:
        folder: where it is.
        config: the model that it says it is.
        headers: its files, and every tensor's place.
        match: its tensors beside those that the config implies.
        num_parameters: numbers of the text model as stored, packed ones by the byte.
        bytes_per_dtype: bytes of all tensors, by dtype as the headers name it.
    """

    folder: Path
    config: HybridConfig
    headers: FolderHeaders
    match: Match
    num_parameters: int
    bytes_per_dtype: dict[str, int]

    @property
    def num_tensors(self) -> int:
        """Tensors in the files, those of a vision tower included."""
        return len(self.headers.tensors)


def find_folder(path: str | Path) -> Path:
    """The checkpoint folder at `path`.

    Raises:
        CheckpointError: no folder, or one without a config.
    """
    folder = Path(path)
    if not folder.is_dir():
        kind = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(
            f"a checkpoint must be a folder with {CONFIG_FILE} and safetensors files, but {folder} "
            f"{kind}; name the folder."
        )
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(
            f"{folder} has no {CONFIG_FILE}; it is no checkpoint, or was not written or fetched to "
            "its end."
        )
    return folder


def inspect(path: str | Path) -> Summary:
    """Summarise the checkpoint in the folder `path`.

    Tensors that are missing, unexpected or mis-shaped are in the summary; only what cannot be read
    at all is an error.

    Raises:
        ConfigError: a config of another architecture, or one that contradicts itself.
        CheckpointError: no checkpoint, a damaged file, or a missing shard.
    """
    folder = find_folder(path)
    config = HybridConfig.from_pretrained(folder)
    headers = read_folder(folder)
    sizes: Counter[str] = Counter()
    for tensor in headers.tensors.values():
        sizes[tensor.dtype] += tensor.nbytes
    found = match(config, headers.tensors)
    skipped = set(found.skipped)
    count = sum(
        prod(tensor.shape) for name, tensor in headers.tensors.items() if name not in skipped
    )
    return Summary(folder, config, headers, found, count, dict(sizes))


def complaint(found: Match) -> str | None:
    """What is wrong with the tensors of a checkpoint, in one sentence; None when nothing is."""
    packing = _packing_complaint(found)
    if packing is not None:
        return packing
    parts = []
    if found.missing:
        parts.append(f"lacks {len(found.missing)}: {listed(found.missing)}")
    if found.unexpected:
        parts.append(f"has {len(found.unexpected)} too many: {listed(found.unexpected)}")
    if found.misshaped:
        shapes = (f"{m.name} {list(m.shape)} instead of {list(m.wanted)}" for m in found.misshaped)
        parts.append(f"has {len(found.misshaped)} of another shape: {listed(shapes)}")
    return "; ".join(parts) or None


def _packing_complaint(found: Match) -> str | None:
    """What is wrong with how experts are packed, which a list of names would hide."""
    missing, unexpected = set(found.missing), set(found.unexpected)

    def instead(lacked: str, held: str) -> list[str]:
        stems = (n.removesuffix(lacked) for n in found.missing if n.endswith(lacked))
        return [stem + held for stem in stems if stem + held in unexpected]

    packed, plain = instead(".weight", PACKED), instead(PACKED, ".weight")
    if packed:
        return (
            f"holds packed weights ({listed(packed, 2)}), but its config has no "
            "quantization_config that packs them"
        )
    if plain:
        return f"holds plain weights ({listed(plain, 2)}), but its config packs them"
    ends = ((SCALE, PACKED), (PACKED, SCALE))
    single = [
        name
        for end, other in ends
        for name in found.missing
        if name.endswith(end) and name.removesuffix(end) + other not in missing
    ]
    if single:
        return f"lacks one of the two tensors of {len(single)} packed matrices: {listed(single)}"
    return None


class Part(NamedTuple):
    """The tensors of one layer, or of one part outside the layers.

    Args:
        name: `layer 3` (0-based), `embedding`, `ending`, `head`, `unknown` or `vision`.
        holds: in words, such as "KDA, experts".
        tensors: how many there are.
        parameters: numbers in them: two in a packed byte, none in a scale.
        nbytes: as stored.
    """

    name: str
    holds: str
    tensors: int
    parameters: int
    nbytes: int


_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def parts(summary: Summary) -> list[Part]:
    """A checkpoint part by part, in the order of the model, layers without tensors included."""
    outside = dict.fromkeys(summary.match.unexpected, "unknown")
    outside |= dict.fromkeys(summary.match.skipped, "vision")
    holds = _holds(summary.config, summary.match.tied_head is not None)
    tensors = summary.headers.tensors.items()
    return _summed(holds, ((n, t.shape, t.nbytes) for n, t in tensors), outside)


def implied(config: HybridConfig) -> tuple[list[Part], dict[str, int]]:
    """The parts that a checkpoint of `config` would have, and its bytes by dtype; no file is read.

    Args:
        config: the model.

    Returns:
        Parts as of `parts`, and bytes of all tensors by dtype as a header would name it.
    """
    dtypes: Counter[str] = Counter()
    rows = []
    for name, spec in tensor_table(config).items():
        nbytes = prod(spec.shape) * DTYPE_BYTES[spec.dtype]
        dtypes[spec.dtype] += nbytes
        rows.append((name, spec.shape, nbytes))
    return _summed(_holds(config, False), rows, {}), dict(dtypes)


def _holds(config: HybridConfig, redundant_head: bool) -> dict[str, str]:
    """What each part is, by its name, in the order of the model."""
    holds = {"embedding": "of tokens"}
    for i in range(config.num_hidden_layers):
        mixer = "Gated MLA" if config.is_global(i) else "KDA"
        holds[f"layer {i}"] = f"{mixer}, {'experts' if config.is_moe(i) else 'MLP'}"
    holds["ending"] = "final norm" + ", last mixture" * (config.attn_res_block_size is not None)
    if not config.tie_word_embeddings or redundant_head:
        holds["head"] = "logits"
    return holds | {"unknown": "not of this config", "vision": "not read"}


def _summed(
    holds: dict[str, str],
    tensors: Iterable[tuple[str, tuple[int, ...], int]],
    outside: dict[str, str],
) -> list[Part]:
    """Parts from the name, shape and bytes of each tensor; `outside` are those of no layer."""
    sums = {name: [0, 0, 0] for name in holds}
    for name, shape, nbytes in tensors:
        row = sums[outside.get(name) or _part_of(name.removeprefix(K3_PREFIX))]
        row[0] += 1
        row[1] += _parameters(name, shape)
        row[2] += nbytes
    found = [Part(name, words, *sums[name]) for name, words in holds.items()]
    return [part for part in found if part.tensors or part.name not in ("unknown", "vision")]


def _part_of(name: str) -> str:
    """The part of a tensor that the config implies, by its name in memory."""
    layer = _LAYER.match(name)
    if layer:
        return f"layer {layer[1]}"
    return {EMBEDDING: "embedding", HEAD: "head"}.get(name, "ending")


def _parameters(name: str, shape: tuple[int, ...]) -> int:
    return 0 if name.endswith(SCALE) else prod(shape) * (1 + name.endswith(PACKED))

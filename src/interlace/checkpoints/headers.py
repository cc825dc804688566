"""Headers of safetensors files, and the index that joins shards, read without touching a weight.

    8 bytes                  length of the header, little-endian
    header                   JSON: name -> dtype, shape, data_offsets; spaces behind
    the rest of the file     the tensors, end to end, without a hole

Nothing is taken on trust: a length that the file cannot have, a shape that does not fill its bytes,
a hole, an overlap, a file that ends too early and a name that is given twice are each refused with
the name of file and tensor. Pickle files are refused unread, because reading one runs code.
Standard library only, so that sizing a checkpoint loads no torch.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from interlace.errors import CheckpointError

__all__ = [
    "CONFIG_FILE",
    "DTYPE_BYTES",
    "INDEX_FILE",
    "SINGLE_FILE",
    "FolderHeaders",
    "TensorHeader",
    "is_checkpoint_file",
    "listed",
    "pack_header",
    "read_folder",
    "read_header",
    "read_index",
]

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

DTYPE_BYTES: dict[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
"""Bytes of one number, by the name that a header gives its dtype."""

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_SHARD = re.compile(r"model-\d{5,}-of-\d{5,}\.safetensors")
_PREFIX = 8


class TensorHeader(NamedTuple):
    """Where one tensor lies.

    Args:
        file: the file that holds it.
        dtype: as the header names it, such as "BF16".
        shape: as stored.
        start: first byte, counted from the start of the file.
        nbytes: length in bytes.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class FolderHeaders:
    """All tensors of a checkpoint folder.

    Args:
        files: the safetensors files, in the order of their names.
        tensors: header of each tensor, by its name on disk.
    """

    files: tuple[Path, ...]
    tensors: dict[str, TensorHeader]


def listed(names: Iterable[str], shown: int = 4) -> str:
    """The first few names and how many more there are, for a message."""
    every = list(names)
    more = len(every) - shown
    return ", ".join(every[:shown]) + (f" and {more} more" if more > 0 else "")


def is_checkpoint_file(name: str) -> bool:
    """Whether a file of this name is one that `interlace.save` writes."""
    return name in (CONFIG_FILE, SINGLE_FILE, INDEX_FILE) or bool(_SHARD.fullmatch(name))


def read_header(path: str | Path) -> dict[str, TensorHeader]:
    """The tensors of one safetensors file, by name.

    Raises:
        CheckpointError: a missing, truncated or pickled file, or a header that contradicts itself.
    """
    file = Path(path)
    _refuse_pickle(file)
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            entries, body = _read_entries(file, stream, size)
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist; fetch it again.") from None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror}); check it.") from None
    tensors = {name: _check_entry(file, name, entry, body) for name, entry in entries.items()}
    _check_cover(file, tensors, body, size)
    return tensors


def read_index(path: str | Path) -> dict[str, str]:
    """The file of each tensor, from a `model.safetensors.index.json`.

    Raises:
        CheckpointError: no JSON, no `weight_map`, or a shard that is no plain file name.
    """
    file = Path(path)
    try:
        index = json.loads(file.read_bytes(), object_pairs_hook=_no_duplicates)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror}); check it.") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON ({error}); fetch it again.") from None
    weights = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weights, dict) or not weights:
        raise CheckpointError(
            f"{file} must hold a weight_map from tensor to shard; fetch it again."
        )
    plain: set[str] = set()  # half a million tensors lie in a hundred shards
    for name, shard in weights.items():
        if isinstance(shard, str) and shard in plain:
            continue
        # a shard lies beside its index: a path could point anywhere
        if not isinstance(shard, str) or not _is_plain(shard):
            raise CheckpointError(
                f"{file} places {name} in {shard!r}, which is no name of a .safetensors file "
                "beside it; fetch the index again."
            )
        plain.add(shard)
    return weights


def read_folder(folder: str | Path) -> FolderHeaders:
    """The headers of a checkpoint folder: one `model.safetensors`, or shards and their index.

    Raises:
        CheckpointError: no weights, a missing shard, a shard that lacks a tensor of the index or
            has one too many, or anything that `read_header` refuses.
    """
    root = Path(folder)
    single, index = root / SINGLE_FILE, root / INDEX_FILE
    if single.is_file() and index.is_file():
        raise CheckpointError(
            f"{root} holds both {SINGLE_FILE} and {INDEX_FILE}; remove the one that is out of date."
        )
    if single.is_file():
        return FolderHeaders((single,), read_header(single))
    if not index.is_file():
        raise CheckpointError(_no_weights(root))
    weights = read_index(index)
    shards = sorted(set(weights.values()))
    missing = [shard for shard in shards if not (root / shard).is_file()]
    if missing:
        first = next(name for name, shard in weights.items() if shard == missing[0])
        raise CheckpointError(
            f"{root} lacks {listed(missing)}, which should hold {first} and other tensors; fetch "
            "the missing shards."
        )
    tensors: dict[str, TensorHeader] = {}
    for shard in shards:
        held = read_header(root / shard)
        for name in held:
            if weights.get(name) != shard:
                place = f"places it in {weights[name]}" if name in weights else "does not list it"
                raise CheckpointError(
                    f"{root / shard} holds {name}, but {INDEX_FILE} {place}; index and shards are "
                    "of different checkpoints."
                )
        tensors.update(held)
    absent = [name for name in weights if name not in tensors]
    if absent:
        raise CheckpointError(
            f"{root / weights[absent[0]]} lacks {listed(absent)}, which {INDEX_FILE} places there; "
            "fetch index and shards again."
        )
    return FolderHeaders(tuple(root / shard for shard in shards), tensors)


def pack_header(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[bytes, int]:
    """The first bytes of a safetensors file with these tensors, end to end in this order.

    Args:
        tensors: dtype and shape of each tensor, by name.

    Returns:
        Length field and header, padded so that the first tensor starts at a multiple of 8; and the
        bytes that the tensors take.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_PREFIX, "little") + text, end


# -- one file


def _read_entries(file: Path, stream: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """The JSON of a header and the offset where the tensors start."""
    if size < _PREFIX:
        raise CheckpointError(
            f"{file} must start with 8 bytes of header length, but has {size}; fetch it again."
        )
    length = int.from_bytes(stream.read(_PREFIX), "little")
    # before reading: a damaged length must not become an allocation
    if length > size - _PREFIX:
        raise CheckpointError(
            f"{file} claims a header of {length} bytes, but {size - _PREFIX} follow; it is "
            "truncated or no safetensors file; fetch it again."
        )
    text = stream.read(length)
    try:
        entries = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file} has a header that is not valid JSON ({error}); fetch it again."
        ) from None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{file} must have a JSON object as header; fetch it again.")
    entries.pop("__metadata__", None)
    return entries, _PREFIX + length


def _check_entry(file: Path, name: str, entry: Any, body: int) -> TensorHeader:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(
            f"{file} must give dtype, shape and data_offsets of {name}, got {entry!r:.200}."
        )
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise CheckpointError(
            f"{file} gives {name} the dtype {dtype!r:.80}; known are {', '.join(DTYPE_BYTES)}."
        )
    if not _are_counts(shape):
        raise CheckpointError(f"{file} gives {name} the shape {shape!r:.80}, which is none.")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{file} gives {name} the offsets {offsets!r:.80}, which are none.")
    start, end = offsets
    nbytes = prod(shape) * DTYPE_BYTES[dtype]
    if end - start != nbytes:
        raise CheckpointError(
            f"{file} gives {name} bytes {start} to {end}, but {dtype} of shape {shape} takes "
            f"{nbytes}; fetch it again."
        )
    return TensorHeader(file, dtype, tuple(shape), body + start, nbytes)


def _check_cover(file: Path, tensors: Mapping[str, TensorHeader], body: int, size: int) -> None:
    """The tensors must lie end to end and fill the file."""
    reached = body
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1][3:]):
        if tensor.start != reached:
            kind = "overlaps the tensor" if tensor.start < reached else "leaves a hole"
            raise CheckpointError(
                f"{file}: {name} {kind} before it (byte {tensor.start}, expected {reached}); fetch "
                "it again."
            )
        reached = tensor.start + tensor.nbytes
        if reached > size:
            raise CheckpointError(
                f"{file} is truncated: {name} ends at byte {reached}, the file at {size}; fetch it "
                "again."
            )
    if reached != size:
        raise CheckpointError(
            f"{file} has {size - reached} bytes after its last tensor; fetch it again."
        )


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{twice} is given twice")
    return found


# -- a folder


def _is_plain(shard: str) -> bool:
    return shard.endswith(".safetensors") and Path(shard).name == shard and "\\" not in shard


def _refuse_pickle(file: Path) -> None:
    if file.suffix in _PICKLES:
        raise CheckpointError(
            f"{file} is a pickle, and reading one can run any code; use a checkpoint in "
            "safetensors form."
        )


def _no_weights(root: Path) -> str:
    """What to say of a folder without weights that can be read."""
    names = sorted(path.name for path in root.iterdir())
    for name in names:
        if name.removesuffix(".index.json").endswith(_PICKLES):
            _refuse_pickle(root / name.removesuffix(".index.json"))
    shards = [name for name in names if name.endswith(".safetensors")]
    if shards:
        return (
            f"{root} holds {listed(shards)}, but neither {SINGLE_FILE} nor {INDEX_FILE}; fetch the "
            "index, which says which shards there must be."
        )
    return (
        f"{root} must hold {SINGLE_FILE}, or shards with {INDEX_FILE}, but has no weights; the "
        "checkpoint was not written or fetched to its end."
    )

"""Small checkpoint files, made by hand: what is wrong with them is wrong on purpose."""

import json
from math import prod
from pathlib import Path

from interlace.checkpoints.headers import DTYPE_BYTES

Tensors = dict[str, tuple[str, list[int]]]


def header_of(tensors: Tensors) -> dict:
    header, end = {}, 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * DTYPE_BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return header


def write_raw(path: Path, header: object, body: bytes, padding: int = 0) -> Path:
    text = (header if isinstance(header, str) else json.dumps(header)).encode() + b" " * padding
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    return path


def write_tensors(path: Path, tensors: Tensors, padding: int = 0) -> Path:
    size = sum(prod(shape) * DTYPE_BYTES[dtype] for dtype, shape in tensors.values())
    return write_raw(path, header_of(tensors), bytes(i % 251 for i in range(size)), padding)


def write_index(folder: Path, weights: dict[str, str]) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weights}))
    return path


def write_sharded(folder: Path) -> dict[str, str]:
    """Two shards of two tensors each, and their index."""
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    write_tensors(folder / first, {"a": ("F32", [2, 3]), "b": ("BF16", [5])})
    write_tensors(folder / second, {"c": ("F32", [1]), "d": ("U8", [7])})
    weights = {"a": first, "b": first, "c": second, "d": second}
    write_index(folder, weights)
    return weights

"""The text of the bundled model: the source of the Python standard library, named by a manifest.

The text is on every machine that runs Python, so the manifest holds no text: it names the Python
version, every file with size, hash and side, and the SHA-256 of the training and of the held-out
text (files joined in manifest order). Bytes are read and never decoded.

Two files belong together when they share at least half of the smaller one's distinct 32-byte
shingles (every window of 32 bytes, compared by a 64-bit hash; all of them, no sampling). Such
groups stay on one side.
"""

import hashlib
import json
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from interlace.errors import InputError

__all__ = [
    "SHINGLE",
    "Corpus",
    "ManifestFile",
    "make_manifest",
    "read_manifest",
    "related_groups",
    "stdlib_files",
]

SHINGLE = 32
RULE = (
    "Files that share at least half of the smaller one's distinct 32-byte shingles stay on one "
    "side; whole groups, taken in the order of a seeded shuffle, are held out until 5 % of the "
    "bytes are."
)
_SKIPPED_FOLDERS = {
    "__pycache__",
    "_bundled",
    "dist-packages",
    "encodings",
    "idle_test",
    "site-packages",
    "test",
    "tests",
}
_MIX = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file: path relative to the root, size in bytes, SHA-256, and "train" or "held_out"."""

    path: str
    size: int
    sha256: str
    split: str


@dataclass(frozen=True, slots=True)
class Corpus:
    """The text of a manifest, read and verified; documents in manifest order."""

    train: tuple[bytes, ...]
    held_out: tuple[bytes, ...]
    train_paths: tuple[str, ...]
    held_out_paths: tuple[str, ...]


def stdlib_root() -> Path:
    """The folder of the standard library of the running Python."""
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files(root: Path) -> list[str]:
    """Paths of the corpus under `root`, sorted: all .py but tests, encodings, generated files."""
    found = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        folders = relative.parts[:-1]
        if any(part in _SKIPPED_FOLDERS or part.startswith("config-") for part in folders):
            continue
        if relative.name.startswith("_sysconfigdata") or path.stat().st_size == 0:
            continue
        found.append(relative.as_posix())
    return sorted(found)


def make_manifest(
    root: Path | None = None, share: float = 0.05, count: tuple[int, int] = (30, 40)
) -> dict[str, Any]:
    """The manifest of the standard library under `root` (of the running Python when missing).

    The shuffle's seed is the smallest whose held-out part is within a tenth of `share` and has
    `count` files.

    Raises:
        InputError: no such seed, which happens only with very few files.
    """
    root = root or stdlib_root()
    paths = stdlib_files(root)
    texts = [(root / path).read_bytes() for path in paths]
    groups = related_groups(texts)
    total = sum(map(len, texts))
    for seed in range(1000):
        held = _draw(groups, [len(text) for text in texts], seed, share * total)
        size = sum(len(texts[i]) for i in held)
        if count[0] <= len(held) <= count[1] and abs(size - share * total) <= 0.1 * share * total:
            break
    else:
        raise InputError(
            f"no shuffle holds out {count[0]} to {count[1]} of {len(paths)} files; the corpus is "
            "too small."
        )
    files = [
        ManifestFile(
            path, len(text), hashlib.sha256(text).hexdigest(), "held_out" if i in held else "train"
        )
        for i, (path, text) in enumerate(zip(paths, texts, strict=True))
    ]
    sides = {
        side: b"".join(text for file, text in zip(files, texts, strict=True) if file.split == side)
        for side in ("train", "held_out")
    }
    return {
        "format": 1,
        "root": "stdlib",
        "python": platform.python_version(),
        "rule": RULE,
        "seed": seed,
        "bytes": {side: len(text) for side, text in sides.items()},
        "sha256": {side: hashlib.sha256(text).hexdigest() for side, text in sides.items()},
        "files": [
            {"path": f.path, "size": f.size, "sha256": f.sha256, "split": f.split} for f in files
        ],
    }


def read_manifest(path: Path, root: Path | None = None) -> Corpus:
    """Read the text that a manifest names and verify it.

    Args:
        path: manifest.json.
        root: where the files are; the running Python's standard library when missing.

    Raises:
        InputError: no manifest, or text that differs from it (another Python version); the message
            names the files.
    """
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        files = [ManifestFile(**entry) for entry in manifest["files"]]
        expected = {side: manifest["sha256"][side] for side in ("train", "held_out")}
        for file in files:
            if file.split not in expected or not isinstance(file.path, str):
                raise ValueError(f"no side of the corpus for {file.path!r}: {file.split!r}")
    except OSError as error:
        raise InputError(f"the manifest {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path} must be a corpus manifest (make_manifest writes one): {error!r}."
        ) from error
    root = root or stdlib_root()
    texts: dict[str, list[bytes]] = {"train": [], "held_out": []}
    paths: dict[str, list[str]] = {"train": [], "held_out": []}
    differing = []
    for file in files:
        source = root / file.path
        text = source.read_bytes() if source.is_file() else None
        if (
            text is None
            or len(text) != file.size
            or hashlib.sha256(text).hexdigest() != file.sha256
        ):
            differing.append(file.path)
            continue
        texts[file.split].append(text)
        paths[file.split].append(file.path)
    if differing:
        some = ", ".join(differing[:5]) + (", ..." if len(differing) > 5 else "")
        raise InputError(
            f"the files of {path.name} must be those of Python {manifest.get('python')}; here, "
            f"with Python {platform.python_version()}, {len(differing)} of {len(files)} differ "
            f"({some}); use that Python version."
        )
    for side, parts in texts.items():
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        if digest.hexdigest() != expected.get(side):
            raise InputError(
                f"the SHA-256 of the {side} text must be the one in {path}; the manifest was "
                "changed."
            )
    return Corpus(
        tuple(texts["train"]),
        tuple(texts["held_out"]),
        tuple(paths["train"]),
        tuple(paths["held_out"]),
    )


def related_groups(texts: list[bytes], share: float = 0.5) -> list[list[int]]:
    """Indices of `texts`, grouped so that related ones are together, transitively."""
    hashes = [_shingles(text) for text in texts]
    sizes = np.array([len(h) for h in hashes])
    owner = np.repeat(np.arange(len(texts)), sizes)
    every = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
    order = np.argsort(every, kind="stable")
    every, owner = every[order], owner[order]
    starts = np.flatnonzero(np.r_[True, every[1:] != every[:-1]])
    ends = np.r_[starts[1:], len(every)]
    common = np.zeros((len(texts), len(texts)), dtype=np.int64)
    for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
        members = owner[start:end]
        common[members[:, None], members] += 1
    parent = list(range(len(texts)))

    def root_of(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for i, j in np.argwhere(np.triu(common, 1)):
        if common[i, j] >= share * min(sizes[i], sizes[j]):
            parent[root_of(int(j))] = root_of(int(i))
    groups: dict[int, list[int]] = {}
    for i in range(len(texts)):
        groups.setdefault(root_of(i), []).append(i)
    return list(groups.values())


def _shingles(text: bytes) -> np.ndarray:
    """The distinct 64-bit hashes of all 32-byte windows; of the whole text when it is shorter."""
    if len(text) < SHINGLE:
        digest = hashlib.sha256(text).digest()
        return np.frombuffer(digest[:8], dtype=np.uint64)
    data = np.frombuffer(text, dtype=np.uint8).astype(np.uint64)
    words = np.zeros(len(data) - 7, dtype=np.uint64)
    for shift in range(8):
        words |= data[shift : len(data) - 7 + shift] << np.uint64(8 * shift)
    windows = len(data) - SHINGLE + 1
    out = np.zeros(windows, dtype=np.uint64)
    for part, factor in enumerate(_MIX):
        word = words[8 * part : 8 * part + windows] * np.uint64(factor)
        out = (out ^ (word ^ (word >> np.uint64(29)))) * np.uint64(0xFF51AFD7ED558CCD)
        out ^= out >> np.uint64(32)
    return np.unique(out)


def _draw(groups: list[list[int]], sizes: list[int], seed: int, wanted: float) -> set[int]:
    held: set[int] = set()
    size = 0
    for g in np.random.Generator(np.random.PCG64(seed)).permutation(len(groups)).tolist():
        added = sum(sizes[i] for i in groups[g])
        # a group that would overshoot is passed over
        if size + added <= 1.02 * wanted:
            held.update(groups[g])
            size += added
    return held

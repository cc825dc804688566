"""What a context needs of memory, and what the machine can still give.

The need is a sum of the formulas in `interlace.config`. What can be given is the smallest of what
the system counts as available and what is left under the limit of each control group around this
process: in a container the second is the one that ends a run. Pages of files that the kernel can
drop (`inactive_file`) count as free in both accounts.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from interlace.config.sizes import describe_bytes
from interlace.errors import MemoryLimitError

__all__ = ["Available", "available", "require"]

# a v1 group without a limit shows the largest multiple of a page below 2^63
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Available:
    """Bytes that this process may still take, and who says so."""

    bytes: int
    source: str


def available(
    proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> Available | None:
    """What this process may still take, or None where the system does not say.

    Args:
        proc: the process file system.
        groups: where control groups are mounted.
    """
    found = [*_system(proc), *_limits(proc, groups)]
    return min(found, key=lambda a: a.bytes, default=None)


def require(needed: dict[str, int], limit: Available | None, what: str, advice: str) -> None:
    """Refuse `what` when the sum of `needed` exceeds the limit.

    Args:
        needed: bytes by name; the message lists them.
        limit: what can be given; None refuses nothing.
        what: subject of the message.
        advice: what to do.

    Raises:
        MemoryLimitError: with the numbers.
    """
    total = sum(needed.values())
    if limit is None or total <= limit.bytes:
        return
    parts = ", ".join(f"{name} {describe_bytes(size)}" for name, size in needed.items())
    raise MemoryLimitError(
        f"{what} needs {describe_bytes(total)} of memory ({parts}), but {limit.source} leaves "
        f"{describe_bytes(limit.bytes)}; {advice}."
    )


def _system(proc: Path) -> Iterator[Available]:
    text = _read(proc / "meminfo")
    for line in (text or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield Available(int(value.split()[0]) * 1024, "the system")
            return
    if text is None and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        # macOS keeps no such account for a process to read: all memory, less a fifth for the rest
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        yield Available(physical * 4 // 5, "four fifths of this machine's memory")


def _limits(proc: Path, groups: Path) -> Iterator[Available]:
    """What each control group from that of this process up to the root leaves."""
    for line in (_read(proc / "self" / "cgroup") or "").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            # alone, or beside version 1
            roots, names = [groups, groups / "unified"], ("memory.max", "memory.current")
            cached = "inactive_file"
        elif "memory" in controllers.split(","):
            roots = [groups / "memory"]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            cached = "total_inactive_file"
        else:
            continue
        # a path as seen from outside may not exist in a container; its parents lead to the root
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
        for root in roots:
            for depth in range(len(parts), -1, -1):
                yield from _group(root.joinpath(*parts[:depth]), names, cached)


def _group(folder: Path, names: tuple[str, str], cached: str) -> Iterator[Available]:
    limit, used = (_read(folder / name) for name in names)
    if limit is None or used is None or not limit.strip().isdigit() or int(limit) >= _NO_LIMIT:
        return
    droppable = 0
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == cached:
            droppable = int(value)
    left = int(limit) - max(0, int(used) - droppable)
    yield Available(max(0, left), "the memory limit of this container or control group")


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None

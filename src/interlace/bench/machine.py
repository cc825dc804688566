"""What a measurement says about the machine: who it is, how much others took from it, peak memory.

Everything is read from the kernel's accounts in /proc, so nothing is installed for it.
"""

import os
import platform
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

__all__ = ["OthersShare", "describe", "peak_over", "resident_bytes", "slug"]

PAGE_KIB = 1024
MODEL_FILE = re.compile(r"\.safetensors$")


def describe() -> dict[str, Any]:
    """Processor, cores, memory and versions."""
    cpu = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    total = re.search(r"MemTotal:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    return {
        "cpu": cpu[1] if cpu else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": int(total[1]) * PAGE_KIB if total else None,
        "torch_threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "bf16_dot": "avx512_bf16" in Path("/proc/cpuinfo").read_text(),
    }


def _busy_seconds() -> float:
    """CPU time that the whole machine has spent working, in seconds."""
    fields = [int(n) for n in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = fields[3] + fields[4]
    guest = sum(fields[8:10])  # counted in user time already
    return (sum(fields) - idle - guest) / os.sysconf("SC_CLK_TCK")


class OthersShare:
    """The share of the machine's CPU time that others took while a block ran."""

    def __enter__(self) -> "OthersShare":
        self._busy, self._own, self._wall = (
            _busy_seconds(),
            time.process_time(),
            time.perf_counter(),
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        others = (_busy_seconds() - self._busy) - (time.process_time() - self._own)
        capacity = (time.perf_counter() - self._wall) * (os.cpu_count() or 1)
        self.share = max(0.0, others / capacity)


def resident_bytes() -> int:
    """Anonymous memory of this process plus its mapped model files."""
    status = Path("/proc/self/status").read_text()
    anonymous = re.search(r"RssAnon:\s*(\d+) kB", status)
    assert anonymous, "the kernel must report RssAnon"
    total = int(anonymous[1])
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0] in "0123456789abcdef" and "-" in line.split(" ", 1)[0]:
            inside = MODEL_FILE.search(line) is not None
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total * PAGE_KIB


def peak_over(base: int, work: Callable[[], object], every: float = 0.01) -> int:
    """Peak of `resident_bytes` while `work` runs, minus `base`."""
    done = threading.Event()
    seen = [resident_bytes()]

    def watch() -> None:
        while not done.wait(every):
            seen.append(resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return max(seen) - base


def slug() -> str:
    """The machine's processor and cores as part of a file name."""
    cpu = re.sub(r"\(.*?\)", "", str(describe()["cpu"]))
    words = re.findall(r"[a-z0-9]+", cpu.lower())
    kept = [word for word in words if word not in {"processor", "cpu", "core", "with"}]
    return "-".join([*kept[:4], f"{os.cpu_count()}c"])

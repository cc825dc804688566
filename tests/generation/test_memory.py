"""What the machine can give, from made-up accounts of its kernel; and the sentence that refuses."""

from pathlib import Path

import pytest

from interlace.errors import MemoryLimitError
from interlace.generation import memory


def machine(folder: Path, files: dict[str, str]) -> dict[str, Path]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"proc": folder / "proc", "groups": folder / "cgroup"}


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"}


def test_without_groups_it_is_what_the_system_says(tmp_path):
    assert memory.available(**machine(tmp_path, MEMINFO)) == memory.Available(
        8_192_000, "the system"
    )


def test_version_2_counts_the_tightest_group_on_the_way_up(tmp_path):
    files = {
        **MEMINFO,
        "proc/self/cgroup": "0::/a/b\n",
        "cgroup/a/b/memory.max": "max\n",
        "cgroup/a/b/memory.current": "5\n",
        "cgroup/a/memory.max": "1000000\n",
        "cgroup/a/memory.current": "700000\n",
        "cgroup/a/memory.stat": "anon 600000\ninactive_file 50000\n",
    }
    assert memory.available(**machine(tmp_path, files)).bytes == 350_000


def test_version_1_counts_too(tmp_path):
    files = {
        **MEMINFO,
        "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/x/y\n0::/\n",
        "cgroup/memory/x/y/memory.limit_in_bytes": "9223372036854771712\n",
        "cgroup/memory/x/y/memory.usage_in_bytes": "900\n",
        "cgroup/memory/x/memory.limit_in_bytes": "500000\n",
        "cgroup/memory/x/memory.usage_in_bytes": "100000\n",
        "cgroup/memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 2000\n",
    }
    found = memory.available(**machine(tmp_path, files))
    assert found.bytes == 402_000
    assert "container" in found.source


def test_path_that_only_the_host_knows_falls_back_to_the_mount(tmp_path):
    files = {
        **MEMINFO,
        "proc/self/cgroup": "0::/../host/slice\n",
        "cgroup/memory.max": "4000\n",
        "cgroup/memory.current": "9000\n",
    }
    assert memory.available(**machine(tmp_path, files)).bytes == 0


def test_roomy_group_does_not_hide_a_full_system(tmp_path):
    files = {
        **MEMINFO,
        "proc/self/cgroup": "0::/\n",
        "cgroup/memory.max": "99000000\n",
        "cgroup/memory.current": "0\n",
    }
    assert memory.available(**machine(tmp_path, files)).source == "the system"


def test_system_without_accounts_counts_its_memory(tmp_path):
    found = memory.available(**machine(tmp_path, {}))
    assert found is None or found.bytes > 10**8


def test_this_machine_says_something():
    assert memory.available().bytes > 10**6


def test_refusal_has_the_numbers():
    limit = memory.Available(5_000_000, "the system")
    memory.require({"a": 4_000_000, "b": 1_000_000}, limit, "it", "do less")
    memory.require({"a": 10**15}, None, "it", "do less")
    with pytest.raises(MemoryLimitError) as caught:
        memory.require({"cache": 4_000_000, "state": 1_000_001}, limit, "a context", "do less")
    message = str(caught.value)
    for part in (
        "a context needs 5.0 MB",
        "cache 4.0 MB",
        "state 1.0 MB",
        "the system leaves 5.0 MB",
        "do less",
    ):
        assert part in message

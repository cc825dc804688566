"""Run Python with another build of the native core: one under sanitizers, say.

    python benchmarks/with_native.py FOLDER -m pytest tests/ops/test_mla_decode.py
    python benchmarks/with_native.py FOLDER benchmarks/fuzz_native.py --minutes 1

FOLDER holds the module that CMake left there. It is only told where to find it: `interlace` itself
is imported by what runs.
"""

import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


class Finder(MetaPathFinder):
    """Finds `interlace._native` in one file, and nothing else."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The file's, when the native core is asked for."""
        if fullname != "interlace._native":
            return None
        print(f"native core: {self.file}", flush=True)
        return spec_from_file_location(fullname, self.file)


def main() -> None:
    if len(sys.argv) < 3 or (sys.argv[2] == "-m" and len(sys.argv) < 4):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    found = sorted(folder.glob("_native*.so"))
    if len(found) != 1:
        sys.exit(f"{folder} must hold one _native*.so, has {len(found)}; build it first")
    sys.meta_path.insert(0, Finder(found[0]))
    if sys.argv[2] == "-m":
        sys.argv = sys.argv[3:]
        sys.path.insert(0, "")
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = sys.argv[2:]
        sys.path.insert(0, str(Path(sys.argv[0]).parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

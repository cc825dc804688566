"""Every collected fault report has a row in faults.toml: a test that holds it, or its feature."""

import ast
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = tomllib.loads((ROOT / "tests" / "faults.toml").read_text())["fault"]

# The collection numbers its reports from 4 to 102, with these gaps.
GAPS = {10, 17, 19, 21, 31, 33, 42, 43, 60, 72, 80, 93}
IDS = [f"B{number:02d}" for number in range(4, 103) if number not in GAPS]

# Feature -> signs that it is built: "room" (a folder), or "room:pattern", which matches the name
# of a module, class, function or method there. Whoever builds one finds its faults red here.
FEATURES = {
    "cache offload": ["caches:offload*"],
    "context parallelism": ["training:context_parallel*", "ops:context_parallel*"],
    "embedding resize": ["models:resize*"],
    "fp8 weights": ["checkpoints:*fp8*"],
    "interior states": ["ops:interior_state*", "caches:interior_state*"],
    "server": ["server"],
    "speculation": ["generation:specul*", "generation:draft*"],
    "tensor parallelism": ["training:tensor_parallel*", "layers:tensor_parallel*"],
}


def names_in(source: str) -> set[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)}


def is_built(feature: str, package: Path = ROOT / "src" / "interlace") -> bool:
    for sign in FEATURES[feature]:
        room, _, pattern = sign.partition(":")
        files = list((package / room).rglob("*.py"))
        names = {path.stem for path in files}.union(*(names_in(path.read_text()) for path in files))
        if files and (not pattern or any(fnmatch(name, pattern) for name in names)):
            return True
    return False


def problem(row: dict[str, Any]) -> str | None:
    """What is wrong with one row, or None."""
    keys = set(row)
    if keys not in ({"id", "area", "what", "test"}, {"id", "area", "what", "waits"}):
        return f"needs id, area, what, and either test or waits; has {sorted(keys)}"
    if "waits" in row:
        feature = row["waits"]
        if feature not in FEATURES:
            return f"waits for {feature!r}, which FEATURES does not know"
        return f"waits for {feature!r}, which is built" if is_built(feature) else None
    tests = row["test"]
    for test in [tests] if isinstance(tests, str) else tests:
        path, _, name = test.partition("::")
        if not (ROOT / path).is_file():
            return f"names {path}, which does not exist"
        if name not in names_in((ROOT / path).read_text()) or not name.startswith("test_"):
            return f"names {name}, which {path} does not define"
    return None if tests else "names no test"


def test_every_fault_has_one_row():
    assert sorted(row["id"] for row in ROWS) == sorted(IDS)


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_row_is_held_or_waits_for_something_unbuilt(row):
    assert problem(row) is None


def test_every_feature_is_waited_for():
    assert set(FEATURES) == {row["waits"] for row in ROWS if "waits" in row}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"test": "tests/none.py::test_x"}, "does not exist"),
        ({"test": "tests/test_faults.py::test_none"}, "does not define"),
        ({"test": "tests/test_faults.py::problem"}, "does not define"),
        ({"test": []}, "names no test"),
        ({"test": ["tests/test_faults.py::test_bad_row_is_told", "x.py::test_x"]}, "x.py, which"),
        ({"waits": "wings"}, "does not know"),
        ({"waits": "server", "test": "tests/test_faults.py::problem"}, "either"),
        ({}, "either"),
    ],
)
def test_bad_row_is_told(change, complaint):
    assert complaint in problem({"id": "B00", "area": [1], "what": "x", **change})


def test_built_feature_is_seen(tmp_path):
    assert not is_built("cache offload", tmp_path)
    (tmp_path / "caches").mkdir()
    module = tmp_path / "caches" / "hybrid.py"
    module.write_text("class HybridCache:\n    def clone(self): ...\n")
    assert not is_built("cache offload", tmp_path)
    module.write_text("class HybridCache:\n    def offload(self, device): ...\n")
    assert is_built("cache offload", tmp_path)
    assert not is_built("server", tmp_path)

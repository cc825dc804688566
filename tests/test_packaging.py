"""What the project says about itself in several places agrees."""

import re
import tomllib
from pathlib import Path

import interlace

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_version_is_one_everywhere():
    assert PROJECT["project"]["version"] == interlace.__version__
    assert f"version: {interlace.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_every_dependency_has_its_reason():
    text = (ROOT / "pyproject.toml").read_text()
    for requirement in PROJECT["project"]["dependencies"]:
        (line,) = [row for row in text.splitlines() if f'"{requirement}"' in row]
        assert re.search(r"# \w+", line), line


def test_every_dependency_is_imported_by_the_package():
    sources = "\n".join(p.read_text() for p in (ROOT / "src").rglob("*.py"))
    for requirement in PROJECT["project"]["dependencies"]:
        name = re.match(r"[\w-]+", requirement)[0].replace("-", "_")
        assert re.search(rf"^\s*(import|from) {name}\b", sources, re.MULTILINE), name


def test_licence_is_whole_and_types_are_shipped():
    licence = (ROOT / "LICENSE").read_text()
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence
    assert (ROOT / "src" / "interlace" / "py.typed").exists()


def test_ci_runs_what_a_person_runs():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert script.read_text().rstrip().endswith("make check test")

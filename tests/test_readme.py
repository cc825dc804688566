"""The Python of the README and of the guides runs as printed, and what they name exists."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import pytest

from interlace.cli import build_parser
from interlace.config import PRESETS, preset, sizes
from interlace.training import recipe

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
RUN = ("README.md", "docs/guide.md", "docs/planner.md", "docs/training.md")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/README.md")])
SECTIONS = {
    "[model]": recipe.ModelRecipe,
    "[[init]]": recipe.InitRule,
    "[data]": recipe.DataRecipe,
    "[[data.stage]]": recipe.StageRule,
    "[optimizer]": recipe.OptimizerRecipe,
    "[[optimizer.group]]": recipe.GroupRule,
    "[schedule]": recipe.ScheduleRecipe,
    "[run]": recipe.RunRecipe,
}


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# transformers warns of keys that the published files have
@pytest.mark.filterwarnings("ignore:.*rope_scaling:FutureWarning")
@pytest.mark.parametrize("page", RUN)
def test_python_of_the_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for text in blocks(page, "toml"):
        Path("recipe.toml").write_text(text)
    pieces = blocks(page, "python")
    assert pieces
    names: dict[str, object] = {}
    for number, piece in enumerate(pieces):
        exec(compile(piece, f"{page}, python block {number}", "exec"), names)


def test_command_lines_are_understood():
    parser, seen = build_parser(), 0
    for page in PAGES:
        for line in re.findall(r"^    interlace (.+)$", page.read_text(), re.MULTILINE):
            parser.parse_args(shlex.split(line, comments=True))
            seen += 1
    assert seen >= 5


def test_links_lead_to_files_and_headings():
    for page in PAGES:
        for target, heading in re.findall(
            r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)",
            re.sub(r"```.*?```", "", page.read_text(), flags=re.S),
        ):
            if "://" in target:
                continue
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name}: {target}"
            if heading:
                titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
                slugs = [
                    re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
                ]
                assert heading in slugs, f"{page.name}: #{heading}"


def test_readme_names_targets_that_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", README)) <= targets


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_of_a_recipe_is_listed_with_its_default(section):
    text = (ROOT / "docs" / "training.md").read_text()
    table = text.split(f"### {section}\n")[1].split("\n### ")[0]
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE))
    assert listed == {f.name: default_of(f) for f in dataclasses.fields(SECTIONS[section])}


def default_of(field: dataclasses.Field) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return f"`{json.dumps(field.default_factory())}`"
    if field.default is dataclasses.MISSING:
        return "required"
    return "none" if field.default is None else f"`{json.dumps(field.default)}`"


def test_every_preset_is_listed_with_its_size():
    text = (ROOT / "docs" / "guide.md").read_text()
    for name in PRESETS:
        assert f"`{name}`" in text
        config = preset(name)
        row = re.search(rf"^\| `{name}` \| (.+?) \| (.+?) \|", text, re.MULTILINE)
        assert row or name.endswith("-mla")
        if row:
            assert row[1] == f"{config.num_kda_layers} + {config.num_global_layers}"
            assert row[2] == f"{sizes.live_parameters(config) / 1e6:,.1f} M"


def test_guide_shows_the_recorded_chat():
    rows = (ROOT / "docs" / "casts" / "chat.cast").read_text().splitlines()
    header, *events = map(json.loads, rows)
    assert header["version"] == 2
    shown = "".join(text for _, _, text in events).replace("\r\n", "\n").strip()
    assert f"```text\n{shown}\n```" in (ROOT / "docs" / "guide.md").read_text()
    reused = [int(n) for n in re.findall(r"(\d+) of them reused", shown)]
    assert len(reused) == 2
    assert reused[0] == 0 < reused[1]

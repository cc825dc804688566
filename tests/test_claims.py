"""Every command of docs/claims.md runs and prints what its row says; every test it names exists."""

import ast
import contextlib
import io
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from interlace.cli import main

ROOT = Path(__file__).resolve().parents[1]
VERDICTS = ("agrees", "differs", "not resolved at our scale", "cannot be tested here")
HEAD = ["statement", "from", "shown by", "what we got", "verdict"]


def rows():
    for line in (ROOT / "docs" / "claims.md").read_text().splitlines():
        if line.startswith("| "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells != HEAD:
                yield cells


ROWS = list(rows())


@cache
def printed(command):
    """What a line of the shell prints, run in this process."""
    program, *words = shlex.split(command)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if program == "interlace":
            assert main(words) == 0
        else:
            assert (program, words[0], len(words)) == ("python", "-c", 2)
            exec(compile(words[1], command, "exec"), {})
    return out.getvalue()


@pytest.mark.parametrize("row", ROWS, ids=[f"{i}: {r[0][:40]}" for i, r in enumerate(ROWS)])
def test_row_is_whole_and_its_command_shows_it(row):
    assert len(row) == 5
    statement, source, command, got, verdict = row
    assert statement
    assert source
    word, _, why = verdict.partition(": ")
    assert word in VERDICTS
    assert why or word != "differs"
    if command == "-":
        assert word != "agrees"
        return
    (command,) = re.fullmatch(r"`(.+)`", command).groups()
    assert got != "-"
    if command.startswith("pytest "):
        file, _, name = command.removeprefix("pytest ").partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        return
    shown = re.findall(r"`(.+?)`", got)
    assert shown
    for part in shown:
        assert part in printed(command), (part, printed(command))


def test_every_verdict_occurs_and_the_article_is_covered():
    words = [row[4].partition(": ")[0] for row in ROWS]
    assert set(words) == set(VERDICTS)
    text = " ".join(" ".join(row) for row in ROWS)
    for number in ("2.2", "6.24", "74.2", "74.1", "3.875", "3.86", "181", "13,824", "35,136"):
        assert number in text

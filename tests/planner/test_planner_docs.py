"""Every printed block of docs/planner.md is what the command above it prints."""

import re
import shlex
from pathlib import Path

import pytest

from interlace.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planner.md"
BLOCKS = re.findall(
    r"^    interlace (plan [^\n]+)\n\n```text\n(.*?)```", PAGE.read_text(), re.M | re.S
)


def test_the_page_shows_commands():
    assert len(BLOCKS) >= 2


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[b[0][:40] for b in BLOCKS])
def test_block_is_what_the_command_prints(capsys, command, shown):
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == shown

"""The command itself: help with examples, version, usage; quick, for it loads nothing heavy."""

import os
import subprocess
import sys

import pytest

import interlace
from interlace.cli import COMMANDS, main


def test_help_loads_no_torch():
    code = (
        "import sys; from interlace.cli import main; status = main(['--help']); "
        "heavy = {'torch', 'numpy', 'tqdm'} & set(sys.modules); sys.exit(str(heavy or status))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "0\n")
    assert done.stdout.startswith("usage: interlace")


def test_module_is_the_command():
    run = [sys.executable, "-m", "interlace", "generate", "--no-such-option"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(capsys, command):
    assert main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"example: interlace {command}" in " ".join(out.split())
    assert err == ""
    # a conversation is read by a person, and its lines are its output
    for option in ("--quiet", "--verbose", *(["--json"] if command != "chat" else [])):
        assert option in out


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(command in out for command in COMMANDS)


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"interlace {interlace.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["fly"], ["-q"]])
def test_bad_usage_is_one_sentence(capsys, argv):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("interlace: ")
    assert err.count("\n") == 1
    assert "see 'interlace --help'" in err


def test_reader_that_leaves_gets_no_traceback():
    code = (
        "import sys; from interlace.cli import main, train; "
        "train.run = lambda args: print('x' * 10**6); sys.exit(main(['train', 'any']))"
    )
    read, write = os.pipe()
    os.close(read)
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("closed", ["2>&-", ">&-"])
def test_closed_stream_is_no_trouble_and_moves_nothing_to_the_other(closed):
    command = f"{sys.executable} -m interlace generate --prompt '' {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_what_the_system_refuses_is_one_sentence(capsys):
    assert main(["generate", "x" * 5000, "--prompt", "a"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)

"""Ctrl-C in `interlace generate`, as a terminal sends it: to a process that is writing.

The process writes into pipes, and the signal is sent when text has come out of one. So nothing here
waits for a time, and no run ends by itself: the texts are longer than any machine could make.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

from interlace.cli import main

PROMPT = "def f(x):\n    return"
# 200,000 tokens take minutes at any speed; kimi-linear-tiny draws from random weights
ASK = ["generate", "kimi-linear-tiny", "--prompt", PROMPT, "--temperature", "1"]
LONG = ["--max-tokens", "200000"]


@contextmanager
def running(*argv):
    """The command in a process of its own, which is gone afterwards."""
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from interlace.cli import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # what is read ahead would be lost to communicate()
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_what_was_written_stays_and_the_cache_serves_the_next_prompt(capsys, tmp_path):
    file = tmp_path / "prompt.cache"
    with running(*ASK, *LONG, "--cache", str(file)) as process:
        first = process.stdout.read(64)  # as soon as there is anything
        process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=60)
    text, told = (first + rest).decode(), err.decode()
    assert process.returncode == 130
    assert "Traceback" not in told
    assert "interrupted" in told
    assert f"of the prompt, from {file}" in told
    assert list(tmp_path.iterdir()) == [file]
    # the text is the beginning of what the same command writes when nobody interrupts it
    assert main([*ASK, "--max-tokens", str(len(text.encode()) + 8)]) == 0
    assert capsys.readouterr().out.startswith(text.rstrip("\ufffd"))
    # the cache is whole: it has read the prompt, and goes on from there as one without a file
    more = ["--prompt", PROMPT + " x", "--max-tokens", "9", "--json"]
    assert main([*ASK, *more, "--cache", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["reused_tokens"] == len(PROMPT)
    assert main([*ASK, *more]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == found["text"]


def test_json_is_whole_and_says_interrupt(tmp_path):
    # with --json nothing is written before the end: the prompt is read when the file has grown
    file = tmp_path / "prompt.cache"
    ask = [*ASK, "--json", "-v", "--prefill-chunk", "4", *LONG, "--cache", str(file)]
    with running(*ask) as process:
        assert b"drawing random weights" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    # before the model has run there is nothing to tell, afterwards one whole object
    if out:
        assert json.loads(out)["finish_reason"] == "interrupt"
        assert file.exists()
    else:
        assert err.endswith(b"\ninterlace: interrupted.\n")
        assert not list(tmp_path.iterdir())


def test_pressed_again_it_still_ends_without_a_traceback_and_with_no_half_file(tmp_path):
    file = tmp_path / "prompt.cache"
    with running(*ASK, *LONG, "--cache", str(file)) as process:
        process.stdout.read(64)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert [path for path in tmp_path.iterdir() if path != file] == []

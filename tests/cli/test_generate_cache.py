"""`interlace generate --cache`: what two prompts share is read once, also after Ctrl-C."""

import json

import pytest

from interlace.cli import main
from interlace.generation.sampling import Sampler

ASK = ["generate", "kimi-linear-tiny", "--max-tokens", "6"]
FIRST = "def f(x):\n    return"


def run(capsys, *argv, status=0):
    assert main([*ASK, *argv]) == status
    return capsys.readouterr()


def test_the_second_prompt_reads_only_what_is_new(capsys, tmp_path):
    file = tmp_path / "prompt.cache"
    more = ["--prompt", FIRST + " x + 1", "--cache", str(file), "--json"]
    first = json.loads(run(capsys, "--prompt", FIRST, *more[2:]).out)
    assert (first["reused_tokens"], first["prompt_tokens"]) == (0, len(FIRST))
    second = json.loads(run(capsys, *more).out)
    assert second["reused_tokens"] == len(FIRST)
    fresh = json.loads(run(capsys, *more[:2], "--json").out)
    assert second["text"] == fresh["text"]
    third = run(capsys, *more[:-1])
    assert f"of the prompt, from {file}" in third.err
    assert list(tmp_path.iterdir()) == [file]


def test_an_interrupt_keeps_text_and_cache(capsys, tmp_path, monkeypatch):
    file = tmp_path / "prompt.cache"
    pick, left = Sampler.pick, [3]

    def until(self, logits):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return pick(self, logits)

    monkeypatch.setattr(Sampler, "pick", until)
    ask = ["--prompt", FIRST, "--cache", str(file), "--json"]
    got = json.loads(run(capsys, *ask, status=130).out)
    assert (got["finish_reason"], got["new_tokens"]) == ("interrupt", 3)
    left[0] = 99
    again = json.loads(run(capsys, "--prompt", FIRST + " 0", *ask[2:]).out)
    assert again["reused_tokens"] == len(FIRST)
    assert again["text"] == json.loads(run(capsys, "--prompt", FIRST + " 0", "--json").out)["text"]


@pytest.mark.parametrize(
    ("prepare", "more", "message"),
    [
        (lambda file: file.mkdir(), [], "must be a saved cache"),
        (lambda file: file.write_bytes(b"x" * 30), [], "must be a whole cache file"),
        (None, ["--seed", "5"], "model"),
        (None, ["--dtype", "bfloat16"], "float32"),
    ],
    ids=["folder", "damaged", "other weights", "other dtype"],
)
def test_a_cache_that_cannot_serve_is_refused_and_kept(capsys, tmp_path, prepare, more, message):
    file = tmp_path / "prompt.cache"
    ask = ["--prompt", FIRST, "--cache", str(file)]
    if prepare:
        prepare(file)
    else:
        run(capsys, *ask)
    before = None if file.is_dir() else file.read_bytes()
    out, err = run(capsys, *ask, *more, status=2)
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert before is None or file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_that_is_not_there_is_told_before_anything_is_read(capsys, tmp_path):
    out, err = run(capsys, "--prompt", "a", "--cache", str(tmp_path / "no" / "c"), status=2)
    assert out == ""
    assert "folder that exists" in err

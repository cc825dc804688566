"""`interlace generate`: text and numbers each on their own output, one sentence for a mistake."""

import io
import json
import sys

import pytest

import interlace
from interlace.cli import generate as command
from interlace.cli import main
from interlace.cli import models as cli_models
from interlace.config import sizes
from interlace.generation import memory

TINY = ["generate", "kimi-linear-tiny"]
ASK = [*TINY, "--prompt", "def f():", "--max-tokens", "6"]


def stdin(monkeypatch, data: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def result(capsys, argv):
    status = main(argv)
    out, err = capsys.readouterr()
    assert status == 0, err
    return out, err


def test_text_is_on_standard_output_and_the_numbers_behind_it(capsys):
    out, err = result(capsys, ASK)
    lm = interlace.build("kimi-linear-tiny")
    assert out == interlace.generate(lm, "def f():", max_tokens=6)
    rows = [line.split("  ") for line in err.splitlines() if line]
    assert [row[1].strip() for row in rows] == [
        "model",
        "prompt",
        "new text",
        "latent cache",
        "delta state",
        "if expanded",
    ]
    for part in ("8 tokens", "6 tokens", "tokens/s", "13 tokens in room for 14", "random weights"):
        assert part in err
    assert err.count(" kB (") + err.count(" B ") >= 2


def test_json_holds_the_numbers_and_the_text(capsys):
    out, err = result(capsys, [*ASK, "--json", "--seed", "3", "--dtype", "bfloat16"])
    assert err == ""
    got = json.loads(out)
    config = interlace.config.preset("kimi-linear-tiny")
    expected = {
        "model": "kimi-linear-tiny",
        "seed": 3,
        "dtype": "bfloat16",
        "prompt_tokens": 8,
        "new_tokens": 6,
        "finish_reason": "length",
        "cached_tokens": 13,
        "capacity": 14,
        "latent_bytes": sizes.latent_cache_bytes(config, 1, 14, "bfloat16"),
        "state_bytes": sizes.delta_state_bytes(config, 1, "bfloat16"),
        "expanded_bytes": sizes.expanded_cache_bytes(config, 1, 14, "bfloat16"),
    }
    assert {key: got[key] for key in expected} == expected
    assert got["prefill_tokens_per_second"] > 0
    assert got["decode_tokens_per_second"] > 0
    assert isinstance(got["text"], str)


def test_same_seed_same_text_and_options_arrive(capsys):
    drawn = [*ASK, "--temperature", "1.5", "--top-p", "0.9", "--quiet"]
    first = result(capsys, [*drawn, "--seed", "1"])
    assert first == result(
        capsys, [*drawn, "--seed", "1", "--prefill-chunk", "3", "--threads", "1"]
    )
    assert first[1] == ""
    assert first[0] != result(capsys, [*drawn, "--seed", "2"])[0]


def test_file_and_standard_input_are_prompts_too(capsys, tmp_path, monkeypatch):
    file = tmp_path / "f.py"
    file.write_bytes(b"def f():\xc2\xb5 and more")
    quiet = [*TINY, "--max-tokens", "5", "--quiet"]
    literal = result(capsys, [*quiet, "--prompt", "def f():"])
    assert literal == result(capsys, [*quiet, "--prompt-file", str(file), "--prompt-bytes", "8"])
    # a ninth byte would be half a character
    assert literal == result(capsys, [*quiet, "--prompt-file", str(file), "--prompt-bytes", "9"])
    stdin(monkeypatch, b"def f():")
    assert literal == result(capsys, quiet)


def test_echo_puts_the_prompt_in_front(capsys):
    out, _ = result(capsys, [*ASK, "--quiet"])
    assert result(capsys, [*ASK, "--quiet", "--echo"])[0] == "def f():" + out


def test_saved_model_is_read_as_stored(capsys, tmp_path):
    lm = interlace.build("kimi-linear-tiny", seed=5, dtype="bfloat16")
    interlace.save(lm, tmp_path / "saved")
    ask = ["generate", str(tmp_path / "saved"), "--prompt", "abc", "--max-tokens", "6", "--json"]
    got = json.loads(result(capsys, ask)[0])
    assert got["text"] == interlace.generate(lm, "abc", max_tokens=6)
    assert (got["dtype"], got["random_weights"]) == ("bfloat16", False)


def test_terminal_never_obeys_the_text(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    terminal = command.Terminal()
    terminal.echo("\x07")
    for piece in ("a\x1b[2J\x9b", "\tb\n", "c"):
        terminal.write(piece)
    terminal.end_line()
    assert terminal.taken == len("a\x1b[2J\x9b\tb\nc")
    assert capsys.readouterr().out == "\u2407a\u241b[2J\ufffd\tb\nc\n"


MISTAKES = {
    "empty prompt": (["--prompt", ""], "must not be empty"),
    "no number": (["--max-tokens", "many"], "invalid int value"),
    "negative tokens": (["--max-tokens", "-3"], "max_tokens must be at least 0 and an integer"),
    "top-k zero": (["--top-k", "0"], "top_k must be at least 1"),
    "min-p one": (["--min-p", "1"], "min_p must lie in [0, 1)"),
    "no repetition penalty": (["--repetition-penalty", "0"], "repetition_penalty must be a pos"),
    "endless presence penalty": (["--presence-penalty", "inf"], "presence_penalty must be a fin"),
    "empty stop": (["--stop", "a", "--stop", ""], "no empty one"),
    "bias of no id": (["--logit-bias", "a=1"], "--logit-bias must be ID=X"),
    "bias of no number": (["--logit-bias", "3=nan"], "logit_bias must map ids to finite numbers"),
    "bias outside": (["--logit-bias", "256=1"], "logit_bias must name ids in 0..255, got 256"),
    "stop id outside": (["--stop-token", "-1"], "stop_tokens must name ids in 0..255, got -1"),
    "log-probabilities of text": (["--logprobs", "2"], "--logprobs must come with --json"),
    "negative logprobs": (["--logprobs", "-2", "--json"], "logprobs must be at least 0"),
    "negative temperature": (["--temperature", "-1"], "temperature must be"),
    "top-p zero": (["--top-p", "0"], "top_p must lie"),
    "top-p above one": (["--top-p", "1.01"], "top_p must lie"),
    "negative seed": (["--seed", "-1"], "seed must lie"),
    "zero chunk": (["--prefill-chunk", "0"], "prefill_chunk must be at least 1"),
    "zero threads": (["--threads", "0"], "--threads must be at least 1"),
    "zero prompt bytes": (["--prompt-bytes", "0"], "--prompt-bytes must be at least 1"),
    "half a character": (["--prompt", "\u00b5", "--prompt-bytes", "1"], "one whole character"),
    "unknown dtype": (["--dtype", "int3"], "invalid choice"),
    "unknown option": (["--colour"], "unrecognized arguments"),
    "two prompts": (["--prompt", "a", "--prompt-file", "b"], "not allowed with"),
    "byte that is no character": (["--prompt", "ab\udcff"], "0xFF at offset 2"),
    "missing file": (["--prompt-file", "nothing.txt"], "no such file"),
    "loud and quiet": (["-v", "--quiet"], "not allowed with"),
}


def refused(capsys, argv, message, status=2):
    assert main(argv) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("interlace: ")
    assert err.endswith(".\n")
    assert "Traceback" not in err


@pytest.mark.parametrize(("options", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_is_one_sentence(capsys, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    given = options if {"--prompt", "--prompt-file"} & {*options} else ["--prompt", "a", *options]
    refused(capsys, [*TINY, *given], message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "standard input is"), (b"abc\x80d", "0x80 at offset 3"), (b"a\xc2", "offset 1")],
)
def test_standard_input_that_is_no_text_is_refused(capsys, monkeypatch, data, message):
    stdin(monkeypatch, data)
    refused(capsys, TINY, message)


def test_terminal_is_no_prompt(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    refused(capsys, TINY, "a prompt is needed")


def test_folder_is_no_prompt_file(capsys, tmp_path):
    refused(capsys, [*TINY, "--prompt-file", str(tmp_path)], "is a directory")


def test_unknown_model_lists_what_there_is(capsys):
    refused(capsys, ["generate", "gpt", "--prompt", "a"], "kimi-linear-tiny")


def test_missing_bundled_model_is_told(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(cli_models, "BUNDLED_FOLDER", tmp_path)
    refused(capsys, ["generate", "--prompt", "a"], "bundled model is missing")


def test_config_of_another_architecture_is_named(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "hidden_size": 8}))
    refused(capsys, ["generate", str(tmp_path), "--prompt", "a"], "llama")


def test_folder_without_config_is_told(capsys, tmp_path):
    refused(capsys, ["generate", str(tmp_path), "--prompt", "a"], "config.json")


def test_folder_of_a_run_says_where_the_model_is(capsys, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    refused(capsys, ["generate", str(tmp_path), "--prompt", "a"], f"into {tmp_path / 'model'}")


def test_folder_without_weights_is_told(capsys, tmp_path):
    lm = interlace.build("kimi-linear-tiny")
    interlace.save(lm, tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    refused(capsys, ["generate", str(tmp_path), "--prompt", "a"], "safetensors")


def test_prompt_beyond_the_memory_is_refused_before_it_is_read(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "available", lambda: memory.Available(2_000_000, "the system"))
    file = tmp_path / "long.txt"
    file.write_bytes(b"x" * 60_000)
    monkeypatch.setattr(interlace.HybridLM, "__init__", None)
    refused(capsys, [*TINY, "--prompt-file", str(file)], "60,064 tokens")
    refused(capsys, [*TINY, "--prompt", "a", "--max-tokens", "60000"], "2.0 MB")


def test_model_beyond_the_memory_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: memory.Available(10**10, "the system"))
    refused(capsys, ["generate", "kimi-linear-48b", "--prompt", "a"], "weights 98.2 GB")


def test_damaged_weights_end_with_status_1(capsys, monkeypatch):
    lm = interlace.build("kimi-linear-tiny").requires_grad_(False)
    lm.lm_head.weight[3] = float("nan")
    monkeypatch.setattr(cli_models.Model, "load", lambda *_: lm)
    refused(capsys, ASK, "logits must be finite", status=1)


def test_interrupt_ends_with_130_and_no_traceback(capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli_models.Model, "load", interrupt)
    assert main(ASK) == 130
    assert capsys.readouterr().err == "\ninterlace: interrupted.\n"

"""`interlace check`: a table or JSON, status 1 and the first bad layer, 2 for bad input."""

import json
from importlib import import_module
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

import interlace
from interlace.cli import main
from interlace.generation import memory
from small_models import DENSE
from tiny_models import model

TINY = ["check", "kimi-linear-tiny", "--tokens", "9", "--no-save"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two layers in bf16."""
    changes = {"num_hidden_layers": 2, "kda_layers": (1,), "full_attn_layers": (2,)}
    lm = model("bfloat16", **DENSE, **changes)
    path = tmp_path_factory.mktemp("check") / "model"
    interlace.save(lm, path)
    return str(path)


def test_table_has_a_line_for_each_part_and_a_verdict(capsys):
    assert main([*TINY, "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [line.split() for line in out.splitlines()]
    parts = [line[1] for line in lines if line and line[0] == "3"]
    assert parts == ["Gated", "Gated", "experts", "stream"]
    assert next(line[:3] for line in lines if "layer" in line) == ["layer", "part", "bound"]
    assert "random weights, in float32; rows of 9 and 5 tokens" in out
    assert "GREEN: " in out


def test_narrow_weights_are_checked_as_stored_and_in_float32(capsys, folder):
    assert main(["check", folder, "--tokens", "6", "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert [run["dtype"] for run in got["runs"]] == ["bfloat16", "float32"]
    assert got["ok"]
    assert not got["random_weights"]
    for run, slack in zip(got["runs"], (4e-3, 1e-6), strict=True):
        assert run["tokens"] == [6, 5, 4][: len(run["tokens"])]
        found = [f for f in run["findings"] if f["part"] != "weights"]
        for f in found:
            # rounding that has travelled through layers is chancy
            factor = 4 if f["part"] in ("stream", "logits") else 2
            assert f["bound"] == pytest.approx(factor * f["plain_error"] + slack), f["part"]
        assert all(f["error"] <= f["bound"] for f in found)


def test_red_names_the_layer_and_writes_nothing(capsys, tmp_path, monkeypatch, folder):
    module = import_module("interlace.layers.kda")
    run = module.kda
    monkeypatch.setattr(module, "kda", lambda *args, unit_eps, **rest: run(*args, **rest))
    file = tmp_path / "logits.safetensors"
    ask = ["check", folder, "--dtype", "float32", "--tokens", "9", "--no-save"]
    assert main([*ask, "--record", str(file)]) == 1
    out, err = capsys.readouterr()
    assert "RED: layer 0, KDA, chunked: the error" in out
    assert "nothing was written" in err
    assert not file.exists()
    assert main([*ask, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["first_bad"]["layer"] == 0


def test_recorded_here_is_green_here_and_red_for_other_weights(capsys, tmp_path, folder):
    file = str(tmp_path / "logits.safetensors")
    ask = ["check", folder, "--no-save", "--dtype", "float32"]
    assert main([*ask, "--tokens", "7", "--record", file, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recorded"] == file
    assert main([*ask, "--quiet", "--against", file]) == 0
    assert "logits, recorded" in capsys.readouterr().out
    tensors = load_file(file)
    tensors["logits"][0, 3] *= 1.001
    metadata = {"format": "interlace-logits", "version": "1", "dtype": "float32"}
    save_file(tensors, file, metadata=metadata)
    assert main([*ask, "--against", file]) == 1
    assert "RED: logits, recorded elsewhere" in capsys.readouterr().out


MISTAKES = {
    "model": (["check", "none"], "MODEL must be"),
    "tokens": ([*TINY[:2], "--tokens", "1"], "--tokens must be at least 2, got 1"),
    "threads": ([*TINY, "--threads", "0"], "--threads must be at least 1"),
    "seed": ([*TINY, "--seed", "-1"], "--seed must lie in"),
    "both": ([*TINY, "--against", "x"], "leave out --tokens"),
    "against": (["check", "kimi-linear-tiny", "--against", "x"], "does not exist"),
    "record": ([*TINY, "--record", "no/where/x"], "folder that exists"),
    "dtype": ([*TINY, "--dtype", "int8"], "invalid choice"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_one_sentence_before_any_work(capsys, monkeypatch, name):
    monkeypatch.setattr("interlace.build", None)
    argv, words = MISTAKES[name]
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_too_large_a_model_is_refused_with_the_numbers(capsys, monkeypatch):
    monkeypatch.setattr("interlace.build", None)
    monkeypatch.setattr(memory, "available", lambda: memory.Available(10**9, "the system"))
    assert main(["check", "kimi-linear-48b", "--no-save"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "(weights 98.2 GB" in err
    assert "the system leaves 1.0 GB" in err
    monkeypatch.setattr(memory, "available", lambda: None)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10))
    assert main(["check", "kimi-linear-tiny"]) == 2
    assert "10 B" in capsys.readouterr().err

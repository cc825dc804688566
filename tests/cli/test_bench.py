"""`interlace bench`: options that go together, mistakes in one sentence, both forms of output."""

import json
from functools import partial

import pytest
from bench_sizes import PROBE
from test_generate import refused

from interlace.bench import limits, models, operators
from interlace.cli import main
from interlace.ops.native import absence

TINY = "kimi-linear-tiny"


@pytest.fixture
def quick(monkeypatch):
    """Measurements that take no time."""
    small = {"min_seconds": 0.0}
    least = {**small, "cold_bytes": 1 << 20, "matrix": 16}
    changes = {models: small, operators: least, limits: {**least, "probe": PROBE}}
    for module, options in changes.items():
        monkeypatch.setattr(module, "measure", partial(module.measure, **options))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "WHAT must be one of limits, ops, model, or --explain stand alone"),
        (["ops", "--explain"], "stand alone"),
        (["speed"], "invalid choice"),
        (["limits", "--models", "mid"], "--models does not go with limits"),
        (["limits", "--plot", "a.png"], "--plot does not go with limits"),
        (["--explain", "--depths", "5"], "--depths does not go with --explain"),
        (["model", "--runs", "0"], "--runs must lie in 1..10000, got 0"),
        (["model", "--threads", "-1"], "--threads must lie"),
        (["model", "--depths", "1,,2"], "--depths must be a whole number"),
        (["model", "--depths", "4X"], "got '4X'"),
        (["model", "--prompts", "0"], "--prompts must be a whole number"),
        (["model", "--depths", "", "--prompts", ""], "a model and a depth or a prompt"),
        (["model", "--models", "mid,mid"], "--models must be different names"),
        (["model", "--models", "gpt2"], "no preset is named 'gpt2'"),
        (["model", "--against", "vllm"], "--against must name transformers or llama.cpp"),
        (["model", "--plot", "a.txt"], "--plot must end in"),
        (["model", "--plot", "no/a.png"], "a folder that exists"),
        (["ops", "--prompts", "1,2"], "one number for ops"),
        (["ops", "--depths", "0"], "at least 1 for ops"),
        (["ops", "--only", "conviction"], "part of an operator's name"),
        (["ops", "--sizes", "gpt2"], "no preset is named 'gpt2'"),
    ],
)
def test_mistakes_are_one_sentence(capsys, arguments, words):
    refused(capsys, ["bench", *arguments], words)


def test_out_must_be_a_folder(capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    refused(capsys, ["bench", "limits", "--out", str(file)], "--out must be a folder")


def test_explain_prints_the_table_or_json(capsys):
    assert main(["bench", "--explain", "--models", "mid", "--prompts", "47,96"]) == 0
    out = capsys.readouterr().out
    few, many = ("absorbed", "rebuilt") if absence() else ("native", "native_rebuilt")
    assert f"| attention, cached | 96 tokens | `attention.{many}` | runs |" in out
    assert f"| attention, cached | 47 tokens | `attention.{few}` | runs |" in out
    assert main(["bench", "--explain", "--models", "mid,kl2-mla", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert set(rows) == {"mid", "kl2-mla"}
    assert set(rows["mid"][0]) == {"operator", "call", "way", "chosen", "reason"}


def test_model_is_measured_and_written(capsys, quick, tmp_path):
    sizes = ["--models", TINY, "--depths", "0.02K", "--prompts", "6", "--runs", "1"]
    out = ["--out", str(tmp_path / "results")]
    assert main(["bench", "model", *sizes, *out, "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [r["tokens"] for r in printed["results"]] == [20, 6]
    assert printed["machine"]["cores"] > 0
    (written,) = (tmp_path / "results").glob("model-*.json")
    assert json.loads(written.read_text()) == printed


def test_ops_are_measured(capsys, quick):
    options = ["--sizes", TINY, "--depths", "9", "--prompts", "20", "--only", "kda", "--runs", "1"]
    assert main(["bench", "ops", *options, "--quiet"]) == 0
    out = capsys.readouterr().out
    assert f"| {TINY} | kda step | H=4, state in DRAM |" in out


def test_limits_go_to_the_users_cache(capsys, quick, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["bench", "limits", "--runs", "1", "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)["results"]
    assert json.loads((tmp_path / "interlace" / "limits.json").read_text()) == printed

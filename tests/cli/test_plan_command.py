"""`interlace plan`: text, JSON, comparisons, and every mistake in one sentence."""

import io
import json
import re

import pytest

from interlace.cli import main
from interlace.config import preset


def run(capsys, *args):
    status = main(["plan", *args])
    out, err = capsys.readouterr()
    return status, out, err


def test_text_names_every_part_in_both_units(capsys):
    status, out, err = run(capsys, "kimi-k3", "--context", "1M")
    assert (status, err) == (0, "")
    for part in (
        "kimi-k3: 69 KDA + 24 Gated MLA, 93 layers",
        "2.78 T parameters, 105.36 B active",
        "1 sequence of 1,000,000 tokens",
        "27.6 GB (25.7 GiB)",
        "27,648 B for one more token",
        "scales of routed experts, mxfp4",
        "recurrent state, KDA",
        "activations of a prefill chunk of 512",
        "total",
    ):
        assert part in out


def test_json_is_one_object_with_bytes_and_seconds(capsys):
    args = ("kimi-k3", "--context", "1Mi", "--tp", "16", "--hardware", "h200", "--fit", "batch")
    status, out, _ = run(capsys, *args, "--compare", "all-mla,mha", "kimi-k2", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["bytes"]["cache"] == 28_991_029_248
    assert found["largest_batch"] == 1
    assert found["seconds"]["per_token"] > 0
    assert [other["model"] for other in found["compared"]] == [
        "kimi-k3, all MLA",
        "kimi-k3, MHA",
        "kimi-k2",
    ]


def test_tables_side_by_side(capsys):
    args = ("kimi-linear-48b", "--context", "1M", "--hardware", "b200", "--fit", "context")
    _, out, _ = run(capsys, *args, "--compare", "all-mla")
    assert "longest context at batch 1: " in out
    assert "kimi-linear-48b, all MLA" in out
    assert "Cache and state of one sequence, by tokens" in out
    assert "Time of a decoding step, by tokens" in out
    assert "note:" not in out


def test_config_file_folder_and_standard_input(capsys, tmp_path, monkeypatch):
    text = json.dumps(preset("mid").to_dict())
    (tmp_path / "config.json").write_text(text)
    sizes = set()
    for model in (str(tmp_path), str(tmp_path / "config.json"), "-"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        _, out, _ = run(capsys, model, "--context", "9", "--json")
        sizes.add(json.loads(out)["bytes"]["total"])
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["kimi-k3"], "the following arguments are required: --context"),
        (["kimi-k9", "--context", "1K"], "got 'kimi-k9'"),
        (["kimi-k3", "--context", "many"], "context must be a whole number from 1"),
        (["kimi-k3", "--context", "1K", "--batch", "0"], "batch must be a whole number from 1"),
        (["kimi-k3", "--context", "1K", "--hardware", "abacus"], "hardware must be one of h100"),
        (["kimi-k3", "--context", "1K", "--tp", "9"], "tp must divide the 96 heads"),
        (["kimi-k3", "--context", "1K", "--cache-dtype", "x"], "cache_dtype must be one of"),
        (["kimi-k3", "--context", "1K", "--fit", "batch"], "--fit needs --memory, such as 141GB"),
        (
            ["kimi-k3", "--context", "1K", "--fit", "batch", "--memory", "80GB"],
            "memory must be at least .* bytes for batch 1 of kimi-k3",
        ),
        (["kimi-k3", "--context", "1K", "--compare", "qwen9"], "got 'qwen9'"),
        (["qwen3-4b", "--context", "1K", "--compare", "mha"], "mha needs a model with MLA layers"),
        (
            ["mid", "--context", "1K", "--plot", "a.txt"],
            "--plot must end in .png, .svg, .pdf, .html",
        ),
        (["-", "--context", "1K"], "standard input must be the JSON of a config.json"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_status_two(capsys, monkeypatch, args, message):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{not json")))
    status, out, err = run(capsys, *args)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert re.search(message, err), err


def test_measured_without_a_measurement(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    status, out, err = run(capsys, "mid", "--context", "1K", "--hardware", "measured")
    assert (status, out) == (2, "")
    assert "run 'interlace bench limits' first" in err


def test_plot_writes_a_page_beside_the_text(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("interlace.planner.coefficients.BATCHES", (1, 2))
    path = tmp_path / "plan.html"
    args = ("mid", "--context", "64K", "--compare", "all-mla", "--hardware", "cpu")
    status, out, err = run(capsys, *args, "--plot", str(path))
    assert (status, err) == (0, "")
    assert "mid, all MLA" in out
    assert '"name":"mid, all MLA"' in path.read_text()


def test_what_is_understood_in_part_is_named_beside_another_model_too(capsys, tmp_path):
    part = "not counted: 1 layer that predict"
    path = tmp_path / "plan.html"
    args = ("mid", "--context", "9", "--compare", "deepseek-v3", "--plot", str(path))
    _, out, _ = run(capsys, *args)
    assert f"note on deepseek-v3: {part}" in out
    assert part in path.read_text()


def test_a_mistake_writes_no_picture(capsys, tmp_path):
    path = tmp_path / "plan.html"
    status, out, _ = run(capsys, "mid", "--context", "64K", "--tp", "3", "--plot", str(path))
    assert (status, out, path.exists()) == (2, "", False)

"""`interlace train`: what arrives at the trainer, what comes back, and mistakes in one sentence."""

import json
from pathlib import Path

import pytest
from test_generate import refused

from interlace import training
from interlace.cli import main, train
from interlace.errors import InputError, NonFiniteError

FIELDS = {
    "steps": 7,
    "loss": 1.5,
    "bits_per_byte": None,
    "bits_per_byte_averaged": None,
    "tokens": 90,
    "cpu_hours": 0.0,
    "wall_hours": 0.0,
    "out": Path("out"),
    "model": None,
}


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("")
    return path


@pytest.fixture
def calls(monkeypatch):
    """Every call of the trainer, which does nothing here."""
    seen = []

    def run(recipe, **options):
        seen.append((recipe, options))
        return training.TrainResult(finished=not options["resume"], **FIELDS)

    monkeypatch.setattr(training, "run", run)
    return seen


def test_options_arrive(capsys, recipe, calls):
    changes = ["--set", "schedule.steps=3", "--set", "data.files=['a=b']"]
    assert main(["train", str(recipe), *changes, "--quiet"]) == 0
    overrides = ["schedule.steps=3", "data.files=['a=b']"]
    assert calls == [(recipe, {"resume": False, "overrides": overrides, "progress": False})]
    assert capsys.readouterr() == ("", "")


def test_result_is_told_or_json(capsys, recipe, calls):
    assert main(["train", str(recipe)]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["steps", "7"]
    assert err == ""
    assert main(["train", str(recipe), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 90


def test_summary_leaves_out_what_was_not_measured_and_scales_times():
    measured = FIELDS | {"bits_per_byte": 2.0, "wall_hours": 0.5, "cpu_hours": 1.25}
    assert train.summary(measured).splitlines() == [
        "steps          7",
        "tokens         90",
        "loss           1.500 nats per token, of the last step",
        "bits per byte  2.000 on the openings of the held-out files",
        "wall time      30.0 min",
        "CPU time / 2   1.25 h",
        "log            out/log.jsonl",
    ]
    assert "loss" not in train.summary(FIELDS | {"loss": None})
    assert "wall time      1.8 s" in train.summary(FIELDS | {"wall_hours": 0.0005})


def test_stopped_run_says_how_to_go_on(capsys, recipe, calls):
    assert main(["train", str(recipe), "--resume", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["finished"] is False
    assert "stopped after step 7" in err
    assert "--resume continues" in err


@pytest.mark.parametrize("change", ["lr", "=3", ""])
def test_change_without_key_or_value_is_refused(capsys, recipe, calls, change):
    refused(capsys, ["train", str(recipe), "--set", change], "--set must be KEY=VALUE")
    assert calls == []


def test_missing_recipe_is_refused(capsys, tmp_path, calls):
    refused(capsys, ["train", str(tmp_path)], "RECIPE must be a TOML file")
    refused(capsys, ["train", str(tmp_path / "none.toml")], "none.toml")
    assert calls == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model]\npreset = 'default'\ncolour = 1\n", "colour"),
        ("[data]\nfiles = ['*.nothing']\n[schedule]\nsteps = 2\n[run]\nout = 'out'\n", "nothing"),
        ("[data]\nfiles = ['recipe.toml']\nbatch = 0\n[schedule]\nsteps = 2\n", "data.batch"),
        ("[data]\nfiles = ['recipe.toml']\n[schedule]\nsteps = -1\n", "schedule.steps"),
        ("steps = = 3\n", "recipe.toml"),
    ],
    ids=["unknown key", "empty corpus", "zero", "negative", "no TOML"],
)
def test_recipe_that_cannot_be_used_is_one_sentence(capsys, recipe, text, message):
    recipe.write_text(text)
    before = sorted(recipe.parent.iterdir())
    refused(capsys, ["train", str(recipe), "--quiet"], message)
    assert sorted(recipe.parent.iterdir()) == before


@pytest.mark.parametrize(("error", "status"), [(InputError, 2), (NonFiniteError, 1)])
def test_failure_of_a_run_has_its_status(capsys, recipe, monkeypatch, error, status):
    def run(recipe, **options):
        raise error("no more.")

    monkeypatch.setattr(training, "run", run)
    refused(capsys, ["train", str(recipe)], "no more", status)

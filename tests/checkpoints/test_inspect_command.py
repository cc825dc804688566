"""`interlace inspect`: the account of a folder, 1 for a model that is not whole, no torch."""

import json
import subprocess
import sys

import pytest
from checkpoint_files import write_tensors

from interlace.checkpoints.names import K3_PREFIX, tensor_table
from interlace.cli import main
from interlace.config import HybridConfig, preset
from interlace.config.sizes import checkpoint_bytes, stored_parameters
from packed_models import packed_config


def write(folder, config, change=lambda tensors: None):
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    tensors = {n: (spec.dtype, list(spec.shape)) for n, spec in tensor_table(config).items()}
    change(tensors)
    write_tensors(folder / "model.safetensors", tensors)


CONFIGS = [preset("kimi-linear-tiny"), preset("kimi-k3-tiny"), packed_config()]


@pytest.mark.parametrize("config", CONFIGS, ids=["kimi_linear", "k3", "k3 packed"])
def test_every_part_adds_up_to_the_model(capsys, tmp_path, config):
    write(tmp_path, config)
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["complete"]
    assert got["complaint"] is None
    assert got["parameters"] == stored_parameters(config)
    assert got["bytes"] == checkpoint_bytes(config)
    for total, key in (("parameters",) * 2, ("tensors",) * 2, ("bytes", "nbytes")):
        assert got[total] == sum(part[key] for part in got["parts"])
    kinds = [p["holds"].split(",")[0] for p in got["parts"] if p["name"].startswith("layer")]
    wanted = ["Gated MLA" if config.is_global(i) else "KDA" for i in range(len(kinds))]
    assert (len(kinds), kinds) == (config.num_hidden_layers, wanted)
    assert main(["inspect", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert f"{stored_parameters(config):,} parameters" in out
    assert out.endswith("The model is whole.\n")
    assert err == ""


def test_what_is_wrong_is_named_and_the_status_is_one(capsys, tmp_path):
    lost, strange = K3_PREFIX + "model.norm.weight", K3_PREFIX + "model.layers.9.x"

    def damage(tensors):
        del tensors[lost]
        tensors[strange] = ("F32", [3])
        tensors["vision_tower.x"] = ("BF16", [5])

    write(tmp_path, preset("kimi-k3-tiny"), damage)
    assert main(["inspect", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"NOT WHOLE: the checkpoint lacks 1: {lost}; has 1 too many: {strange}." in out
    assert "no part of the text model: vision_tower.x." in out
    assert main(["inspect", str(tmp_path), "--json"]) == 1
    got = json.loads(capsys.readouterr().out)
    assert (got["missing"], got["unknown"], got["vision"]) == (
        [lost],
        [strange],
        ["vision_tower.x"],
    )
    assert [(p["name"], p["nbytes"]) for p in got["parts"][-2:]] == [
        ("unknown", 12),
        ("vision", 10),
    ]


def test_no_torch_is_imported_and_no_weight_is_read(tmp_path):
    write(tmp_path, preset("kimi-linear-tiny"))
    code = (
        "import sys; from interlace.cli import main; status = main(sys.argv[1:]); "
        "heavy = {'torch', 'numpy'} & set(sys.modules); sys.exit(str(heavy or status))"
    )
    for name in (str(tmp_path), "kimi-k3-tiny"):
        run = [sys.executable, "-c", code, "inspect", name]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "0\n")


@pytest.mark.parametrize("name", ["kimi-linear-tiny", "kimi-k3-tiny", "mid-mla"])
def test_a_preset_is_told_without_files(capsys, name):
    config = preset(name)
    assert main(["inspect", name, "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["parameters"] == stored_parameters(config) == sum(got["groups"].values())
    assert got["bytes"] == checkpoint_bytes(config) == sum(got["dtypes"].values())
    assert HybridConfig.from_dict(got["config"]) == config
    for total, key in (("parameters",) * 2, ("tensors",) * 2, ("bytes", "nbytes")):
        assert got[total] == sum(part[key] for part in got["parts"])
    assert main(["inspect", name]) == 0
    out, err = capsys.readouterr()
    assert f"{stored_parameters(config):,} parameters" in out
    assert f"hidden {config.hidden_size:,}, " in out
    assert ("KDA: " in out) == bool(config.num_kda_layers)
    plan = [line[12:] for line in out.splitlines() if line.startswith("layer ")]
    kinds = ["Gated MLA" if config.is_global(i) else "KDA" for i in range(len(plan))]
    assert [words.split(",")[0] for words in plan] == kinds
    assert len(plan) == config.num_hidden_layers
    assert err == ""


def test_a_preset_and_a_checkpoint_of_it_have_the_same_parts(capsys, tmp_path):
    write(tmp_path, preset("kimi-k3-tiny"))
    found = []
    for name in ("kimi-k3-tiny", str(tmp_path)):
        assert main(["inspect", name, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    for key in ("parts", "parameters", "bytes", "tensors", "dtypes", "model_type"):
        assert found[0][key] == found[1][key], key


def test_a_folder_called_like_a_preset_is_written_with_a_dot(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mid").mkdir()
    write(tmp_path / "mid", preset("kimi-linear-tiny"))
    assert main(["inspect", "./mid"]) == 0
    assert "The model is whole." in capsys.readouterr().out
    assert main(["inspect", "mid"]) == 0
    assert "A preset has no weights" in capsys.readouterr().out


def test_no_checkpoint_is_one_sentence(capsys, tmp_path):
    assert main(["inspect", str(tmp_path / "none")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "does not exist" in err
    assert err.count("\n") == 1

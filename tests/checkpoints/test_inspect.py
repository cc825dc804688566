"""A folder at a glance, without a weight being read."""

import json
import sys

import pytest
from checkpoint_files import write_tensors

from interlace.checkpoints.inspect import complaint, find_folder, inspect
from interlace.checkpoints.names import Match, Misshaped, tensor_table
from interlace.config import preset
from interlace.errors import CheckpointError, ConfigError


def write(folder, change=lambda tensors: None, config=None):
    config = config or preset("kimi-linear-tiny")
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    tensors = {name: (spec.dtype, list(spec.shape)) for name, spec in tensor_table(config).items()}
    change(tensors)
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def test_summary_of_a_whole_checkpoint(tmp_path):
    summary = inspect(write(tmp_path))
    assert summary.config == preset("kimi-linear-tiny")
    assert summary.num_tensors == 151
    assert summary.num_parameters == 300_916
    assert summary.bytes_per_dtype == {"F32": 4 * 300_916}
    assert summary.match.complete
    assert complaint(summary.match) is None


def test_summary_names_what_is_wrong(tmp_path):
    def damage(tensors):
        del tensors["model.norm.weight"]
        tensors["model.extra"] = ("F32", [3])
        tensors["vision_tower.x"] = ("BF16", [5])
        tensors["lm_head.weight"] = ("F32", [64, 256])

    summary = inspect(write(tmp_path, damage))
    assert summary.match.missing == ["model.norm.weight"]
    assert summary.match.unexpected == ["model.extra"]
    assert summary.match.skipped == ["vision_tower.x"]
    assert summary.match.misshaped == [Misshaped("lm_head.weight", (64, 256), (256, 64))]
    assert summary.bytes_per_dtype["BF16"] == 10
    assert summary.num_parameters == 300_916 - 64 + 3


def test_complaint_names_a_few_and_counts_the_rest():
    found = Match(missing=[f"t{i}" for i in range(9)], misshaped=[Misshaped("s", (1, 2), (2, 1))])
    assert complaint(found) == (
        "lacks 9: t0, t1, t2, t3 and 5 more; has 1 of another shape: s [1, 2] instead of [2, 1]"
    )


def test_no_weight_is_read(tmp_path, monkeypatch):
    write(tmp_path)
    file = tmp_path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-4:] = b"\xff\xff\xff\x7f"  # a NaN that nobody sees
    file.write_bytes(content)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert inspect(tmp_path).match.complete


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda f: f / "none", CheckpointError, "does not exist"),
        (lambda f: f / "config.json", CheckpointError, "is a file"),
        (lambda f: (f / "config.json").unlink(), CheckpointError, r"has no config\.json"),
        (lambda f: (f / "config.json").write_text("{"), ConfigError, "not valid JSON"),
        (lambda f: (f / "model.safetensors").unlink(), CheckpointError, "has no weights"),
        (
            lambda f: (f / "config.json").write_text('{"model_type": "llama"}'),
            ConfigError,
            "'llama'",
        ),
    ],
    ids=["no folder", "a file", "no config", "bad config", "no weights", "another model"],
)
def test_what_is_no_checkpoint_is_told(tmp_path, make, kind, words):
    path = make(write(tmp_path))
    with pytest.raises(kind, match=words):
        inspect(path if path is not None and not isinstance(path, int) else tmp_path)


def test_a_folder_with_a_config_is_found(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert find_folder(tmp_path) == tmp_path

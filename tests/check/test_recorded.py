"""Logits on file: whole, checked before they are believed, and judged like any other way."""

import pytest
import torch
from safetensors.torch import save_file

from interlace.check import Recording, check_model, read_recording, record, rows_with
from interlace.check import write_recording as write
from interlace.errors import CheckpointError, InputError
from small_models import DENSE
from tiny_models import ids, model

GOOD = {"format": "interlace-logits", "version": "1", "dtype": "float32"}


def test_what_is_written_is_read(tmp_path):
    lm = model()
    made = record(lm, ids(7, 2))
    write(tmp_path / "a.safetensors", made)
    write(tmp_path / "a.safetensors", made)  # replaces its own
    got = read_recording(tmp_path / "a.safetensors", 61)
    assert torch.equal(got.tokens, made.tokens)
    assert torch.equal(got.logits, made.logits)
    assert got.dtype == torch.float32
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    assert [len(row) for row in rows_with(got.tokens)] == [7, 7, 5, 4]


def test_recorded_logits_are_judged():
    lm = model(num_hidden_layers=1, kda_layers=(1,), full_attn_layers=(), **DENSE)
    made = record(lm, ids(4, 2))
    rows = rows_with(made.tokens)
    assert check_model(lm, rows, saved=False, recording=made).findings[-1].ok
    wrong = Recording(made.tokens, made.logits + 3e-3, made.dtype)
    report = check_model(lm, rows, saved=False, recording=wrong)
    assert report.first_bad.way == "recorded elsewhere"
    # in bf16 that is rounding
    narrow = Recording(made.tokens, made.logits + 3e-3, torch.bfloat16)
    assert check_model(lm, rows, saved=False, recording=narrow).ok


def tensors(**changes):
    made = {"tokens": ids(4, 1), "logits": torch.zeros(1, 4, 61)}
    return {name: value for name, value in {**made, **changes}.items() if value is not None}


BAD = {
    "no logits": ({"logits": None}, GOOD, "tokens and logits"),
    "other vocabulary": ({"logits": torch.zeros(1, 4, 60)}, GOOD, "another model"),
    "one row less": ({"logits": torch.zeros(4, 61)}, GOOD, "another model"),
    "id out of range": ({"tokens": torch.full((1, 4), 61)}, GOOD, r"0..60, got 61"),
    "fractions": ({"tokens": torch.zeros(1, 4)}, GOOD, "integers"),
    "not finite": ({"logits": torch.full((1, 4, 61), float("nan"))}, GOOD, "not finite"),
    "nothing": ({"tokens": ids(4, 1)[:, :0], "logits": torch.zeros(1, 0, 61)}, GOOD, "B, T"),
    "no format": ({}, None, "metadata"),
    "newer": ({}, {**GOOD, "version": "2"}, "version 1, got '2'"),
    "no dtype": ({}, {**GOOD, "dtype": "int4"}, "dtype"),
}


@pytest.mark.parametrize("name", BAD)
def test_another_file_is_refused(tmp_path, name):
    changes, metadata, words = BAD[name]
    save_file(tensors(**changes), tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises(CheckpointError, match=words):
        read_recording(tmp_path / "x.safetensors", 61)


def test_a_truncated_file_is_refused(tmp_path):
    file = tmp_path / "x.safetensors"
    write(file, record(model(), ids(4, 1)))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        read_recording(file, 61)


def test_nothing_else_is_written_over(tmp_path):
    weights = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(2)}, weights)
    before = weights.read_bytes()
    made = record(model(), ids(4, 1))
    for target, words in (
        (weights, "holds no recorded logits"),
        (tmp_path, "holds no recorded logits"),
        (tmp_path / "none" / "x", "folder that exists"),
    ):
        with pytest.raises(InputError, match=words):
            write(target, made)
    assert weights.read_bytes() == before


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("interlace.check.recorded.save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "x.safetensors", record(model(), ids(4, 1)))
    assert not list(tmp_path.iterdir())

"""`interlace init`: a whole checkpoint, its size said first, nothing written when refused."""

import json
import shutil
from collections import namedtuple

import pytest
import torch

import interlace
from interlace.checkpoints import drawn
from interlace.checkpoints.inspect import inspect
from interlace.cli import main
from interlace.config.sizes import checkpoint_bytes
from interlace.errors import CheckpointError
from interlace.layers.packed import PackedLinear


def init(capsys, *arguments):
    status = main(["init", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_tiny_k3_is_whole_and_runs(tmp_path, capsys):
    status, out, err = init(capsys, "kimi-k3-tiny", tmp_path / "x", "--json")
    assert status == 0
    found = json.loads(out)
    summary = inspect(tmp_path / "x")
    assert summary.match.complete
    assert not summary.match.retyped
    assert found["tensors"] == summary.num_tensors
    assert found["bytes"] == checkpoint_bytes(summary.config)
    assert "parameters, 1.1 MB" in err
    assert [p.name for p in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x" / "tiktoken.model").is_file()
    lm = interlace.load(tmp_path / "x", tokenizer=False).requires_grad_(False)
    w1 = lm.model.layers[1].block_sparse_moe.experts[0].w1
    assert isinstance(w1, PackedLinear)
    assert 0.015 < float(w1.expanded().float().std()) < 0.025
    assert torch.isfinite(lm(torch.tensor([[3, 257, 511]]))).all()


@pytest.mark.parametrize("name", ["kimi-linear-tiny", "default"])
def test_other_presets_have_their_own_layout(tmp_path, name):
    config = drawn.drawn_config(name)
    drawn.draw_checkpoint(config, tmp_path / "a", seed=4)
    drawn.draw_checkpoint(config, tmp_path / "b", seed=4, max_shard_bytes=10**5)
    a, b = (interlace.load(tmp_path / f, tokenizer=False).state_dict() for f in "ab")
    assert all(torch.equal(value, b[name]) for name, value in a.items())
    drawn.draw_checkpoint(config, tmp_path / "c", seed=5)
    other = interlace.load(tmp_path / "c", tokenizer=False).state_dict()
    assert not torch.equal(a["lm_head.weight"], other["lm_head.weight"])


def test_what_is_refused_writes_nothing(tmp_path, capsys, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    usage = namedtuple("usage", "total used free")
    for arguments, words in (
        (["kimi-k3", tmp_path / "x"], "say --yes to write more than 10.0 GB"),
        (["gpt2", tmp_path / "x"], "no preset is named 'gpt2'"),
        (["kimi-k3-tiny", tmp_path / "full"], "must be empty or not there yet"),
        (["kimi-k3-tiny", tmp_path / "x", "--seed", "-1"], "seed must be an integer"),
    ):
        status, out, err = init(capsys, *arguments)
        assert (status, out) == (2, "")
        assert words in err
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**7, 0, 10**7))
    status, out, err = init(capsys, "kimi-k3-tiny", tmp_path / "x")
    assert (status, out) == (2, "")
    assert "must fit on the disk" in err
    assert [p.name for p in tmp_path.iterdir()] == ["full"]


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
    config = drawn.drawn_config("kimi-k3-tiny")
    monkeypatch.setattr(torch, "ones", lambda *_: torch.full((64,), float("nan")))
    with pytest.raises(CheckpointError, match="must be finite"):
        drawn.draw_checkpoint(config, tmp_path / "x")
    assert not list(tmp_path.iterdir())

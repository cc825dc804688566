"""A saved folder is the published layout, whole, and replaces nothing that is not a checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import interlace
from interlace.checkpoints import writer
from interlace.checkpoints.inspect import inspect
from interlace.checkpoints.names import tensor_table
from interlace.checkpoints.readers import readers
from interlace.config import HybridConfig, preset
from interlace.config.sizes import checkpoint_bytes
from interlace.errors import CheckpointError, InputError
from packed_models import packed_config, packed_model
from tiny_models import K3, K3_STYLE, model, small


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("style", [{}, K3_STYLE, K3], ids=["kimi_linear", "k3_mixers", "k3"])
def test_layout_is_the_published_one_to_the_byte(tmp_path, style, dtype):
    saved = interlace.save(model(**style), tmp_path / "x", dtype=dtype)
    config = small(**style, dtype=dtype)
    summary = inspect(tmp_path / "x")
    assert summary.match.complete
    assert not summary.match.retyped
    assert summary.config == config
    assert saved.num_tensors == summary.num_tensors == len(tensor_table(config))
    assert saved.num_bytes == sum(summary.bytes_per_dtype.values()) == checkpoint_bytes(config)
    shapes = {name: tensor.shape for name, tensor in summary.headers.tensors.items()}
    assert shapes == {name: spec.shape for name, spec in tensor_table(config).items()}
    assert json.loads((tmp_path / "x" / "config.json").read_text()) == config.to_dict()
    with safe_open(tmp_path / "x" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_tensors_start_at_multiples_of_their_size(tmp_path):
    interlace.save(model(**K3_STYLE), tmp_path / "x", dtype="bfloat16")
    sizes = {"F32": 4, "BF16": 2}
    tensors = inspect(tmp_path / "x").headers.tensors.values()
    assert {tensor.start % sizes[tensor.dtype] for tensor in tensors} == {0}


def test_shards_are_bounded_and_indexed(tmp_path):
    saved = interlace.save(model(), tmp_path / "x", max_shard_bytes=15_000)
    summary = inspect(tmp_path / "x")
    count = len(summary.headers.files)
    assert saved.files[1] == f"model-00001-of-{count:05d}.safetensors"
    assert saved.files[-1] == "model.safetensors.index.json"
    index = json.loads((tmp_path / "x" / saved.files[-1]).read_text())
    assert index["metadata"]["total_size"] == saved.num_bytes
    for file in summary.headers.files:
        sizes = [t.nbytes for t in summary.headers.tensors.values() if t.file == file]
        assert sum(sizes) <= 15_000 or len(sizes) == 1
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == sorted(saved.files)


def test_saving_changes_nothing_in_the_model(tmp_path):
    lm = model("bfloat16")
    before = {name: value.clone() for name, value in lm.state_dict().items()}
    interlace.save(lm, tmp_path / "x", dtype="float32")
    assert all(torch.equal(before[name], value) for name, value in lm.state_dict().items())
    assert lm.config == small()


def test_a_checkpoint_is_replaced_also_under_the_model_that_maps_it(tmp_path):
    interlace.save(model(), tmp_path / "x", max_shard_bytes=20_000)
    lm = interlace.load(tmp_path / "x").requires_grad_(False)
    lm.lm_head.weight.mul_(2)
    wanted = lm.lm_head.weight.clone()
    interlace.save(lm, tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert sorted(p.name for p in (tmp_path / "x").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    assert torch.equal(interlace.load(tmp_path / "x").lm_head.weight, wanted)
    assert torch.equal(lm.lm_head.weight, wanted)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_failed_save_leaves_the_old_checkpoint_and_nothing_else(tmp_path, value):
    lm = model()
    interlace.save(lm, tmp_path / "x")
    lm.lm_head.weight[60, 39] = value
    with pytest.raises(CheckpointError, match=r"lm_head\.weight must be finite"):
        interlace.save(lm, tmp_path / "x")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight must be finite"):
        interlace.save(lm, tmp_path / "y")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert inspect(tmp_path / "x").match.complete


def test_a_value_too_large_for_the_dtype_is_named(tmp_path):
    lm = model()
    lm.model.norm.weight.fill_(1e6)
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight must be finite .* F16"):
        interlace.save(lm, tmp_path / "x", dtype="float16")


def test_the_old_checkpoint_comes_back_when_the_new_cannot_take_its_place(tmp_path, monkeypatch):
    interlace.save(model(), tmp_path / "x")
    before = (tmp_path / "x" / "model.safetensors").read_bytes()
    rename, calls = Path.rename, []

    def second_fails(self, target):
        calls.append(self)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", second_fails)
    with pytest.raises(OSError, match="No space left"):
        interlace.save(model(), tmp_path / "x")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("name", ["notes.txt", "model.bin", "sub"])
def test_a_folder_with_anything_else_is_refused(tmp_path, name):
    interlace.save(model(), tmp_path / "x")
    if name == "sub":
        (tmp_path / "x" / name).mkdir()
    else:
        (tmp_path / "x" / name).write_text("mine")
    with pytest.raises(CheckpointError, match=f"holds {name}, which saving would remove"):
        interlace.save(model(), tmp_path / "x")
    assert (tmp_path / "x" / name).exists()


def test_a_file_or_a_link_is_no_target(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for name in ("file", "link"):
        with pytest.raises(CheckpointError, match=f"{name} must be a folder"):
            interlace.save(model(), tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"


def test_missing_parents_are_made_and_an_empty_folder_is_taken(tmp_path):
    interlace.save(model(), tmp_path / "a" / "b")
    (tmp_path / "c").mkdir()
    interlace.save(model(), tmp_path / "c")
    assert inspect(tmp_path / "a" / "b").match.complete
    assert inspect(tmp_path / "c").match.complete


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(InputError, match="max_shard_bytes must be at least 1, got 0"):
        interlace.save(model(), tmp_path / "x", max_shard_bytes=0)
    with pytest.raises(InputError, match="'int8'"):
        interlace.save(model(), tmp_path / "x", dtype="int8")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("config", "known"),
    [
        (small(), True),
        (small(q_lora_rank=18), True),
        (small(**K3_STYLE), False),
        (small(tie_word_embeddings=True), False),
        (small(num_shared_experts=0), False),
        (small(moe_layer_freq=2), False),
        (preset("kimi-k3-tiny"), True),
        (preset("kimi-k3-tiny").replace(tie_word_embeddings=True), False),
        (small(**K3), False),
        (packed_config(kda_num_heads=3), True),
    ],
    ids=[
        "kimi_linear",
        "low-rank query",
        "k3 mixers alone",
        "tied",
        "no shared expert",
        "every second",
        "kimi_k3",
        "kimi_k3 tied",
        "kimi_k3 with two numbers of heads",
        "kimi_k3 packed",
    ],
)
def test_others_are_promised_only_what_they_can_read(config: HybridConfig, known):
    assert bool(readers(config)) == known


def test_who_can_read_it_is_logged(tmp_path, caplog):
    with caplog.at_level("INFO", "interlace"):
        interlace.save(model(), tmp_path / "x")
        interlace.save(model(**K3_STYLE), tmp_path / "y")
        interlace.save(packed_model(kda_num_heads=3), tmp_path / "z")
    assert "read by: transformers 5.24" in caplog.text
    assert "read by: nobody else" in caplog.text
    assert "read by: llama.cpp" in caplog.text


def test_a_folder_becomes_visible_only_whole(tmp_path, monkeypatch):
    seen = []
    write = writer._write_json

    def watch(file, content):
        seen.append((file.parent.name, (tmp_path / "x").exists()))
        write(file, content)

    monkeypatch.setattr(writer, "_write_json", watch)
    interlace.save(model(), tmp_path / "x")
    assert seen
    assert all(name.startswith(".x.") and not visible for name, visible in seen)

"""A header is believed in nothing that the file cannot bear out."""

import json
import random
import re

import pytest
import torch
from checkpoint_files import header_of, write_index, write_raw, write_sharded, write_tensors
from safetensors.torch import load_file, save_file

from interlace.checkpoints.headers import (
    is_checkpoint_file,
    pack_header,
    read_folder,
    read_header,
    read_index,
)
from interlace.errors import CheckpointError

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def test_reads_what_safetensors_writes(tmp_path):
    tensors = {"one": torch.arange(6.0).view(2, 3), "two": torch.ones(5).bfloat16()}
    file = tmp_path / "x.safetensors"
    save_file({**tensors, "none": torch.empty(0, 4)}, file, metadata={"format": "pt"})
    headers = read_header(file)
    assert {name: header.dtype for name, header in headers.items()} == {
        "one": "F32",
        "two": "BF16",
        "none": "F32",
    }
    content = file.read_bytes()
    for name, tensor in tensors.items():
        header = headers[name]
        assert header.shape == tuple(tensor.shape)
        expected = tensor.view(torch.uint8).numpy().tobytes()
        assert content[header.start : header.start + header.nbytes] == expected


def test_safetensors_reads_what_pack_header_begins(tmp_path):
    first, second = torch.arange(6.0).view(2, 3), torch.arange(5.0).bfloat16()
    start, size = pack_header({"one": ("F32", (2, 3)), "two": ("BF16", (5,))})
    assert len(start) % 8 == 0
    assert size == 34
    body = b"".join(t.view(torch.uint8).numpy().tobytes() for t in (first, second))
    (tmp_path / "x.safetensors").write_bytes(start + body)
    found = load_file(tmp_path / "x.safetensors")
    assert torch.equal(found["one"], first)
    assert torch.equal(found["two"], second)
    # to the byte, so that a change of the form is seen
    assert start[8:].rstrip() == (
        b'{"__metadata__":{"format":"pt"},"one":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},'
        b'"two":{"dtype":"BF16","shape":[5],"data_offsets":[24,34]}}'
    )


@pytest.mark.parametrize("length", range(99_994, 100_001))
def test_b59_header_of_any_length_parses(tmp_path, length):
    tensors = {f"tensor.{i}": ("U8", [1]) for i in range(1200)}
    padding = length - len(json.dumps(header_of(tensors)))
    file = write_tensors(tmp_path / "x.safetensors", tensors, padding)
    assert int.from_bytes(file.read_bytes()[:8], "little") == length
    assert len(read_header(file)) == 1200


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1, 1_000])
def test_b59_header_length_beyond_the_file_is_refused(tmp_path, length):
    file = write_tensors(tmp_path / "x.safetensors", {"a": ("F32", [2])})
    file.write_bytes(length.to_bytes(8, "little") + file.read_bytes()[8:])
    with pytest.raises(CheckpointError, match=rf"x\.safetensors claims a header of {length} bytes"):
        read_header(file)


def test_b59_every_truncation_is_refused_and_names_the_tensor(tmp_path):
    file = write_tensors(tmp_path / "x.safetensors", {"a": ("F32", [2, 3]), "b": ("BF16", [5])})
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"x\.safetensors") as caught:
            read_header(file)
    assert "truncated: b ends at byte" in str(caught.value)


def test_damaged_headers_raise_nothing_else(tmp_path):
    file = write_tensors(tmp_path / "x.safetensors", {"a": ("F32", [2, 3]), "b": ("BF16", [5])})
    whole = bytearray(file.read_bytes())
    dice = random.Random(5)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[dice.randrange(len(whole) - 34)] = dice.randrange(256)
        file.write_bytes(damaged)
        try:
            read_header(file)
        except CheckpointError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize(
    ("header", "body", "words"),
    [
        ("[1, 2]", 0, "JSON object"),
        ("{", 0, "not valid JSON"),
        ("[" * 50_000, 0, "not valid JSON"),
        ('{"a": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}, "a": 1}', 1, "a is given twice"),
        ({"a": 7}, 0, "dtype, shape and data_offsets of a"),
        ({"a": {"dtype": "U8", "shape": [1]}}, 1, "dtype, shape and data_offsets of a"),
        ({"a": {"dtype": "F7", "shape": [1], "data_offsets": [0, 1]}}, 1, "a the dtype 'F7'"),
        ({"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}}, 1, "a the shape"),
        ({"a": {"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}}, 1, "a the shape"),
        ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}, 1, "a the offsets"),
        ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 0]}}, 1, "a bytes 1 to 0"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 7]}}, 7, "takes 8"),
        ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}, 2, "a leaves a hole"),
        ({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, 2, "1 bytes after"),
        (
            {
                "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
                "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]},
            },
            3,
            "b overlaps",
        ),
    ],
    ids=range(15),
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path, header, body, words):
    file = write_raw(tmp_path / "x.safetensors", header, bytes(body))
    with pytest.raises(CheckpointError, match=words):
        read_header(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"x\.safetensors does not exist"):
        read_header(tmp_path / "x.safetensors")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "x.pkl"])
def test_pickles_are_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x04.")
    for read in (lambda: read_header(tmp_path / name), lambda: read_folder(tmp_path)):
        with pytest.raises(CheckpointError, match=rf"{re.escape(name)} is a pickle"):
            read()


def test_an_index_of_pickles_is_refused(tmp_path):
    (tmp_path / "pytorch_model.bin.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle"):
        read_folder(tmp_path)


def test_reads_one_file_and_shards_alike(tmp_path):
    weights = write_sharded(tmp_path)
    folder = read_folder(tmp_path)
    assert [file.name for file in folder.files] == [FIRST, SECOND]
    assert {name: header.file.name for name, header in folder.tensors.items()} == weights
    alone = tmp_path / "alone"
    alone.mkdir()
    write_tensors(alone / "model.safetensors", {"a": ("F32", [2, 3])})
    assert read_folder(alone).tensors["a"].shape == (2, 3)


def test_b59_missing_shard_is_named(tmp_path):
    write_sharded(tmp_path)
    (tmp_path / SECOND).unlink()
    with pytest.raises(CheckpointError, match=f"lacks {SECOND}, which should hold c"):
        read_folder(tmp_path)


def test_b59_truncated_shard_is_named(tmp_path):
    write_sharded(tmp_path)
    content = (tmp_path / SECOND).read_bytes()
    (tmp_path / SECOND).write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=f"{SECOND} is truncated: d ends"):
        read_folder(tmp_path)


def test_b59_index_entry_of_another_shard_is_named(tmp_path):
    weights = write_sharded(tmp_path)
    write_index(tmp_path, {**weights, "b": SECOND})
    with pytest.raises(
        CheckpointError, match=f"{FIRST} holds b, but {INDEX} places it in {SECOND}"
    ):
        read_folder(tmp_path)
    write_index(tmp_path, {**weights, "e": FIRST})
    with pytest.raises(CheckpointError, match=f"{FIRST} lacks e, which {INDEX} places there"):
        read_folder(tmp_path)
    write_index(tmp_path, {name: shard for name, shard in weights.items() if name != "a"})
    with pytest.raises(CheckpointError, match=f"{FIRST} holds a, but {INDEX} does not list it"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "shard",
    ["../x.safetensors", "/x.safetensors", "sub/x.safetensors", "x.bin", 7, "a\\b.safetensors"],
)
def test_an_index_cannot_point_elsewhere(tmp_path, shard):
    with pytest.raises(CheckpointError, match="places a in"):
        read_index(write_index(tmp_path, {"a": shard}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": {}}', '{"weight_map": 3}'])
def test_an_index_without_a_map_is_refused(tmp_path, text):
    file = tmp_path / INDEX
    file.write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        read_index(file)


def test_an_index_of_the_largest_release_opens(tmp_path):
    names = {f"language_model.model.layers.0.x.{i}.weight_packed": FIRST for i in range(497_220)}
    assert len(read_index(write_index(tmp_path, names))) == 497_220


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "has no weights"),
        ([FIRST, SECOND], "neither model.safetensors nor"),
        (["model.safetensors", INDEX], "holds both"),
        (["other.safetensors"], "holds other.safetensors, but neither"),
        ([".model.safetensors.tmp"], "has no weights"),
    ],
    ids=["empty", "no index", "both", "other", "temporary"],
)
def test_a_folder_without_weights_says_what_is_missing(tmp_path, files, words):
    for name in files:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=words):
        read_folder(tmp_path)


def test_checkpoint_files_are_told_from_others():
    ours = ["config.json", "model.safetensors", INDEX, FIRST, "model-100000-of-123456.safetensors"]
    assert all(map(is_checkpoint_file, ours))
    others = ["README.md", "model.bin", "x.safetensors", "model-1-of-2.safetensors", FIRST + ".tmp"]
    assert not any(map(is_checkpoint_file, others))

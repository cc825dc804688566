"""A tiktoken.model is read line by line, and what is wrong is named by its line."""

import base64
import json

import pytest

from interlace.errors import CheckpointError, InputError
from interlace.text import load_tokenizer
from interlace.text.ranks import K3_MARKS, KIMI_MARKS, read_ranks, write_tokenizer


def lines(count: int = 256) -> list[bytes]:
    return [base64.b64encode(bytes([byte])) + b" %d" % byte for byte in range(count)]


def write(tmp_path, rows):
    file = tmp_path / "tiktoken.model"
    file.write_bytes(b"\n".join(rows) + b"\n")
    return file


def test_ranks_are_read_in_any_order_and_empty_lines_are_none(tmp_path):
    rows = [*reversed(lines()), b"", base64.b64encode(b"ab") + b" 256"]
    ranks = read_ranks(write(tmp_path, rows))
    assert ranks[b"ab"] == 256
    assert ranks[b"\xff"] == 255
    assert len(ranks) == 257


@pytest.mark.parametrize(
    "row",
    [b"YQ==", b"YQ== 1 2", b"Y*== 256", b"YQ= 256", b"YWI= x", b"YWI= -1", b"YWI= 1.5", b" 256"],
)
def test_broken_line_is_named_by_its_number(tmp_path, row):
    file = write(tmp_path, [*lines()[:100], row, *lines()[100:]])
    with pytest.raises(CheckpointError, match=r"line 101, must be a token in base64") as caught:
        read_ranks(file)
    assert repr(row.decode()) in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"YQ== 256", "line 257, gives the token b'a' a second time"),
        (b"YWI= 255", "line 257, gives the rank 255 a second time"),
        (b"YWI= 258", "every rank from 0 to 258, but lacks 256"),
    ],
)
def test_ranks_that_are_no_numbering_are_refused(tmp_path, row, message):
    with pytest.raises(CheckpointError, match=message):
        read_ranks(write(tmp_path, [*lines(), row]))


def test_every_byte_must_be_a_token(tmp_path):
    with pytest.raises(CheckpointError, match="lacks 56 of 256, the first being 0xC8"):
        read_ranks(write(tmp_path, lines(200)))
    with pytest.raises(CheckpointError, match="lacks 256 of 256"):
        read_ranks(write(tmp_path, []))


def test_missing_file_is_told(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_ranks(tmp_path / "tiktoken.model")


@pytest.mark.parametrize("vocab", [276, 300, 512, 700])
def test_made_tokenizer_is_whole_and_the_same_for_the_same_seed(tmp_path, vocab):
    marks = write_tokenizer(tmp_path, vocab, seed=4)
    first = (tmp_path / "tiktoken.model").read_bytes()
    ranks = read_ranks(tmp_path / "tiktoken.model")
    reserved = min(256, vocab - 256)
    assert len(ranks) == vocab - reserved
    assert set(marks) == set(KIMI_MARKS.values())
    assert len(set(marks.values())) == len(marks)
    assert (marks["[BOS]"], marks["<|im_middle|>"]) == (len(ranks), len(ranks) + 17)
    assert marks["[PAD]"] == vocab - 1
    # a merge is of two tokens that are there before it
    for token, rank in ranks.items():
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        assert rank < 256 or any(
            max(ranks.get(a, rank), ranks.get(b, rank)) < rank for a, b in halves
        )
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["added_tokens_decoder"][str(marks["<|im_end|>"])]["content"] == "<|im_end|>"
    write_tokenizer(tmp_path, vocab, seed=4)
    assert (tmp_path / "tiktoken.model").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "tiktoken.model",
        "tokenizer_config.json",
    ]
    if vocab > 512:
        write_tokenizer(tmp_path, vocab, seed=5)
        assert (tmp_path / "tiktoken.model").read_bytes() != first


def test_made_tokenizer_needs_room_for_its_marks(tmp_path):
    with pytest.raises(InputError, match="at least 276 ids, got 275"):
        write_tokenizer(tmp_path, 275)
    with pytest.raises(InputError, match="at least 280 ids, got 279"):
        write_tokenizer(tmp_path, 279, marks=K3_MARKS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("vocab", [280, 322, 324, 700])
def test_marks_of_k3_have_their_places(tmp_path, vocab):
    marks = write_tokenizer(tmp_path, vocab, marks=K3_MARKS)
    first = vocab - min(256, vocab - 256)
    assert marks["<|open|>"] == first + 3
    assert marks["[PAD]"] == vocab - 1
    assert ("<osagent_mode>" in marks) == (vocab - first >= 68)
    assert load_tokenizer(tmp_path).special.items() >= marks.items()

"""Which tokenizer a folder has, and what its configs say of start, end and stop."""

import json

import pytest
from test_json_tokenizer import byte_level

from interlace.errors import CheckpointError
from interlace.text import ByteTokenizer, load_tokenizer
from interlace.text.json_tokenizer import JsonTokenizer
from interlace.text.rank_tokenizer import RankTokenizer
from interlace.text.ranks import write_tokenizer


def config(folder, **fields):
    (folder / "config.json").write_text(json.dumps(fields))


def test_ranks_come_with_names_and_every_stop(tmp_path):
    marks = write_tokenizer(tmp_path, 600)
    config(tmp_path, vocab_size=600, eos_token_id=marks["<|im_end|>"], bos_token_id=marks["[BOS]"])
    made = load_tokenizer(tmp_path)
    assert isinstance(made, RankTokenizer)
    assert made.eos == marks["[EOS]"]
    # the config and the tokenizer name different ends, and either ends an answer
    assert made.stop == (marks["[EOS]"], marks["<|im_end|>"])
    assert made.special.items() >= marks.items()
    more = [marks["[EOT]"], marks["[EOS]"]]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": more}))
    assert load_tokenizer(tmp_path).stop == (marks["[EOS]"], marks["<|im_end|>"], marks["[EOT]"])


def test_nested_config_is_that_of_the_text_model(tmp_path):
    marks = write_tokenizer(tmp_path, 600)
    config(tmp_path, vocab_size=7, text_config={"vocab_size": 603, "eos_token_id": 350})
    assert load_tokenizer(tmp_path).vocab_size == 603
    assert load_tokenizer(tmp_path).stop == (marks["[EOS]"], 350)


def test_without_names_the_config_says_the_marks(tmp_path):
    write_tokenizer(tmp_path, 600)
    (tmp_path / "tokenizer_config.json").unlink()
    config(tmp_path, vocab_size=600, bos_token_id=344, eos_token_id=345)
    made = load_tokenizer(tmp_path)
    assert (made.bos, made.eos, made.stop) == (344, 345, (345,))
    assert made.special["<|reserved_token_344|>"] == 344


def test_json_comes_with_its_config(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    config(tmp_path, vocab_size=270, eos_token_id=259)
    named = {"bos_token": {"content": "[BOS]"}, "eos_token": "[EOS]", "add_bos_token": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    made = load_tokenizer(tmp_path)
    assert isinstance(made, JsonTokenizer)
    assert (made.prefix, made.eos, made.stop, made.vocab_size) == ([257], 258, (258, 259), 270)


def test_ranks_come_before_json(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    write_tokenizer(tmp_path, 600)
    assert isinstance(load_tokenizer(tmp_path), RankTokenizer)


@pytest.mark.parametrize(
    ("vocab", "file", "kind"),
    [
        (256, None, ByteTokenizer),
        (4096, None, ByteTokenizer),
        (255, None, type(None)),
        (4097, None, type(None)),
        (300, "tokenizer.model", type(None)),
        (None, None, type(None)),
    ],
)
def test_bytes_serve_a_small_vocabulary_without_files(tmp_path, vocab, file, kind):
    config(tmp_path, vocab_size=vocab, bos_token_id=None, eos_token_id=None)
    if file:
        (tmp_path / file).write_text("")
    assert type(load_tokenizer(tmp_path)) is kind


def test_byte_marks_come_from_the_config(tmp_path):
    config(tmp_path, vocab_size=258, bos_token_id=256, eos_token_id=257)
    made = load_tokenizer(tmp_path)
    assert (made.prefix, made.stop) == ([256], (257,))


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("config.json", "{", "not valid JSON"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        ("config.json", '{"vocab_size": 600, "eos_token_id": 600}', "got 600"),
        ("config.json", '{"vocab_size": 600, "eos_token_id": ["x"]}', "got 'x'"),
        ("generation_config.json", '{"eos_token_id": -1}', "got -1"),
    ],
)
def test_broken_config_is_one_sentence(tmp_path, file, text, message):
    write_tokenizer(tmp_path, 600)
    config(tmp_path, vocab_size=600)
    (tmp_path / file).write_text(text)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert file in str(caught.value)

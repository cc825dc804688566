"""Ids are bytes, marks are none, and what is neither is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.errors import InputError
from interlace.text import ByteTokenizer, Tokenizer


@given(st.binary(max_size=40))
def test_bytes_survive_the_round_trip(data):
    tokenizer = ByteTokenizer(300, bos=256, eos=257)
    assert tokenizer.decode(tokenizer.encode(data)) == data


def test_text_is_its_utf8():
    assert ByteTokenizer().encode("a\u00b5") == [0x61, 0xC2, 0xB5]


def test_marks_have_no_text():
    tokenizer = ByteTokenizer(259, bos=256, eos=257)
    assert tokenizer.prefix == [256]
    assert tokenizer.decode([256, 65, 258, 257]) == b"A"
    assert tokenizer.silent() == [256, 258]
    assert tokenizer.silent(keep_eos=False) == [256, 257, 258]


def test_mark_below_256_is_a_byte():
    tokenizer = ByteTokenizer(256, bos=1, eos=2)
    assert (tokenizer.prefix, tokenizer.eos, tokenizer.silent()) == ([], None, [])
    assert tokenizer.decode([1, 2]) == b"\x01\x02"


@pytest.mark.parametrize("token", [-1, 300])
def test_id_of_another_vocabulary_is_refused(token):
    with pytest.raises(InputError, match=rf"0\.\.299, got {token}"):
        ByteTokenizer(300).decode([65, token])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 255}, "at least 256 ids, got 255"),
        ({"vocab_size": 257, "eos": 257}, r"eos must be an id in 0\.\.256, got 257"),
        ({"vocab_size": 257, "bos": -1}, "bos must be"),
    ],
)
def test_impossible_vocabulary_is_refused(fields, message):
    with pytest.raises(InputError, match=message):
        ByteTokenizer(**fields)


def test_lone_surrogate_is_refused():
    with pytest.raises(InputError, match="lone surrogate at character 1"):
        ByteTokenizer().encode("a\ud800")


def test_bytes_have_no_named_marks_and_stop_at_the_end_mark():
    tokenizer = ByteTokenizer(259, bos=256, eos=257)
    assert (tokenizer.special, tokenizer.stop) == ({}, (257,))
    assert ByteTokenizer(259).stop == ()
    assert tokenizer.encode("<|im_end|>", special=True) == list(b"<|im_end|>")


def test_bytes_are_a_tokenizer():
    assert isinstance(ByteTokenizer(), Tokenizer)

"""Streamed text is one-shot text, for any bytes and any cuts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlace.text import Utf8Stream, decode_utf8

SMILE = b"\xf0\x9f\x98\x80"


def pieces(chunks):
    stream = Utf8Stream()
    return [stream.feed(chunk) for chunk in chunks] + [stream.flush()]


def test_character_in_four_pieces():
    assert pieces([bytes([b]) for b in SMILE]) == ["", "", "", "\U0001f600", ""]


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_incomplete_end_is_dropped(cut):
    assert "".join(pieces([b"ab", SMILE[:cut]])) == decode_utf8(b"ab" + SMILE[:cut]) == "ab"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\x80\x80", "\ufffd\ufffd"),
        (b"\xf0\x9fA", "\ufffdA"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
        (b"\xc0\xaf", "\ufffd\ufffd"),
    ],
)
def test_what_can_never_be_a_character_is_marked(data, text):
    assert "".join(pieces([bytes([b]) for b in data])) == decode_utf8(data) == text


@given(st.lists(st.binary(max_size=5), max_size=8))
def test_any_cut_gives_the_same_text(chunks):
    assert "".join(pieces(chunks)) == decode_utf8(b"".join(chunks))


@given(st.text(max_size=12), st.data())
def test_valid_text_streams_without_replacement(text, data):
    whole = text.encode()
    cut = data.draw(st.integers(0, len(whole)))
    got = pieces([whole[:cut], whole[cut:]])
    assert "".join(got) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in got)


def test_flush_starts_afresh():
    stream = Utf8Stream()
    stream.feed(SMILE[:2])
    assert stream.flush() == ""
    assert stream.feed(b"x") == "x"

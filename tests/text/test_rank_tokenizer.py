"""Ids of a tiktoken.model: pattern, cuts and marks against a merge of bytes by its definition."""

import sys
from itertools import pairwise

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.errors import CheckpointError, InputError, MissingExtra
from interlace.text import Utf8Stream
from interlace.text import rank_tokenizer as module
from interlace.text.rank_tokenizer import RankTokenizer
from interlace.text.ranks import read_ranks, write_tokenizer

VOCAB = 1200
# the pattern of the published tokenizer, literally
PATTERN = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = regex.compile(PATTERN, regex.V1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a random tiktoken.model, its ranks and its marks."""
    folder = tmp_path_factory.mktemp("tokenizer")
    marks = write_tokenizer(folder, VOCAB, seed=1)
    return folder, read_ranks(folder / "tiktoken.model"), marks


@pytest.fixture(scope="module")
def tokenizer(made):
    folder, _, marks = made
    names = {str(token): {"content": name} for name, token in marks.items()}
    return RankTokenizer(
        folder, vocab_size=VOCAB, names=names, bos="[BOS]", eos="[EOS]", stop=(946,)
    )


def merge(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Byte-pair encoding by its definition: the pair of lowest rank, the first of equals."""
    parts = [word[i : i + 1] for i in range(len(word))]
    while True:
        pairs = [(ranks.get(a + b), i) for i, (a, b) in enumerate(pairwise(parts))]
        known = [pair for pair in pairs if pair[0] is not None]
        if not known:
            return [ranks[part] for part in parts]
        place = min(known)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def expected(text: str, ranks: dict[bytes, int]) -> list[int]:
    words = WORDS.findall(text)
    assert "".join(words) == text
    return [token for word in words for token in merge(word.encode(), ranks)]


def test_pattern_is_the_published_one():
    assert module.PATTERN == PATTERN


@pytest.mark.parametrize(
    "text",
    [
        "",
        "He's SHE'LL don't'd 12345 x=1;\r\n\r\n  y  \n\tz   ",
        "\u6f22\u5b57kana\u304b\u306a\u6f22 \uac00 \u00c4\u00e4\u0130\u01c5e\u0301 \U0001f600",
        "  leading   and trailing   ",
        "\n\n \n  a\u00a0b\u3000c",
    ],
)
def test_ids_are_those_of_pattern_and_merges(made, tokenizer, text):
    assert tokenizer.encode(text) == expected(text, made[1])
    assert tokenizer.decode(tokenizer.encode(text)) == text.encode()


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cn"]), max_size=60))
def test_any_text_has_its_ids_and_comes_back(made, tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text.encode()
    # beyond these the two regular-expression engines may know the characters of different years
    if text.isascii():
        assert ids == expected(text, made[1])


def test_merges_happen(made, tokenizer):
    text = "the answer to a question of another interest"
    assert len(tokenizer.encode(text)) < len(text)


@settings(deadline=None)
@given(st.text(alphabet="a \n\u3000bc", max_size=90), st.integers(2, 9), st.integers(3, 40))
def test_cuts_are_those_of_the_definition(text, run, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_RUN", run)
        patch.setattr(module, "MAX_CHARACTERS", most)
        pieces = [piece for piece in module._cut(text) if piece]
    assert pieces == [
        piece
        for block in range(0, len(text), most)
        for piece in by_definition(text[block : block + most], run)
        if piece
    ]


def by_definition(block: str, run: int) -> list[str]:
    """Character by character: one more of a kind than allowed starts a new piece."""
    pieces, length = [""], 0
    for place, char in enumerate(block):
        same = place > 0 and char.isspace() == block[place - 1].isspace()
        length = length + 1 if same else 1
        if length > run:
            pieces.append("")
            length = 1
        pieces[-1] += char
    return pieces


def test_limits_are_the_published_ones(tokenizer, monkeypatch):
    assert (module.MAX_CHARACTERS, module.MAX_RUN) == (400_000, 25_000)
    text = "a" * 25_001 + " " * 50_001 + "b"
    assert [len(piece) for piece in module._cut(text)] == [25_000, 25_001, 25_000, 2]
    assert [len(piece) for piece in module._cut("a b " * 150_000)] == [400_000, 200_000]


@pytest.mark.parametrize("name", ["<|im_end|>", "[EOS]", "<|reserved_token_949|>"])
def test_marks_in_a_text_are_text_unless_asked_for(tokenizer, name):
    text = f"x{name}y"
    plain = tokenizer.encode(text)
    assert not set(plain) & set(tokenizer.special.values())
    assert tokenizer.decode(plain) == text.encode()
    marked = tokenizer.encode(text, special=True)
    assert marked == [*tokenizer.encode("x"), tokenizer.special[name], *tokenizer.encode("y")]
    assert tokenizer.decode(marked) == b"xy"


def test_reserved_ids_and_stops(made, tokenizer):
    marks = made[2]
    assert (tokenizer.bos, tokenizer.eos, tokenizer.prefix) == (marks["[BOS]"], marks["[EOS]"], [])
    assert tokenizer.stop == (marks["[EOS]"], marks["<|im_end|>"])
    assert len(tokenizer.special) == 256
    silent = tokenizer.silent()
    assert len(silent) == 256 - len(marks) + 1
    assert marks["[BOS]"] in silent
    assert not {marks["[EOS]"], marks["<|im_end|>"], 0, 943} & set(silent)
    assert set(tokenizer.silent(keep_eos=False)) == {*silent, *tokenizer.stop}


def test_ids_behind_the_reserved_ones_stand_for_nothing(made):
    larger = RankTokenizer(made[0], vocab_size=VOCAB + 3)
    assert larger.silent()[-3:] == [VOCAB, VOCAB + 1, VOCAB + 2]
    assert larger.decode([VOCAB + 2, 97]) == b"a"
    assert RankTokenizer(made[0]).vocab_size == VOCAB


def test_smaller_vocabulary_keeps_the_marks_that_fit(made):
    smaller = RankTokenizer(made[0], vocab_size=VOCAB - 250)
    assert len(smaller.special) == 6
    assert smaller.silent() == list(range(VOCAB - 256, VOCAB - 250))


@pytest.mark.parametrize("text", ["\U0001f600\u00b5\u6f22", "a\U0001f469\u200d\U0001f680b"])
def test_b86_characters_split_over_tokens_stream_whole(tokenizer, text):
    stream, pieces = Utf8Stream(), []
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    for token in ids:
        pieces.append(stream.feed(tokenizer.decode([token])))
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_bytes_are_text(tokenizer):
    assert tokenizer.encode("\u00b5m".encode()) == tokenizer.encode("\u00b5m")
    with pytest.raises(InputError, match="0xFF at offset 1"):
        tokenizer.encode(b"a\xff")
    with pytest.raises(InputError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\udc00")


def test_id_of_another_vocabulary_is_refused(tokenizer):
    with pytest.raises(InputError, match=r"0\.\.1199, got 1200"):
        tokenizer.decode([1, 1200])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 900}, "944 tokens, but the model has only 900 ids"),
        ({"names": {"3": {"content": "x"}}}, r"the id 3 'x', but marks must lie in 944\.\.1199"),
        ({"names": {"1200": {"content": "x"}}}, "the id 1200"),
        ({"names": {"x": {"content": "x"}}}, "as ids with a content"),
        ({"names": {"950": {}}}, "as ids with a content"),
        ({"names": {"950": {"content": "x"}, "951": {"content": "x"}}}, "'x' to two ids"),
        ({"eos": "[END]"}, r"eos_token of .* is '\[END\]'"),
        ({"bos": 1200}, "bos_token of .* is 1200"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(made, fields, message):
    with pytest.raises(CheckpointError, match=message):
        RankTokenizer(made[0], **{"vocab_size": VOCAB, **fields})


def test_missing_package_is_told_with_its_command(made, monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(MissingExtra, match=r"pip install 'interlace\[tiktoken\]'"):
        RankTokenizer(made[0])

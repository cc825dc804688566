"""A tokenizer.json: marks in a text are text, tokens are bytes, other kinds are refused."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from interlace.errors import CheckpointError, InputError, MissingExtra
from interlace.text import Tokenizer as Protocol
from interlace.text import Utf8Stream
from interlace.text.json_tokenizer import JsonTokenizer, _byte_alphabet

MARKS = ["[BOS]", "[EOS]", "<|im_end|>"]
THINK = "<think>"  # added, but no mark: it is text


def byte_level(start: str | None = None) -> Tokenizer:
    """Bytes in GPT-2's alphabet, one merge, three marks and one added word."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate([*alphabet, "th"])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True) for name in MARKS])
    made.add_tokens([AddedToken(THINK, normalized=False)])
    if start:
        ends = [("[BOS]", 257), ("[EOS]", 258)]
        made.post_processor = processors.TemplateProcessing(single=start, special_tokens=ends)
    return made


def fallback() -> Tokenizer:
    """Words with U+2581 for a space, and bytes for the rest."""
    names = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)], "\u2581", "a", "b", "\u2581a"]
    made = Tokenizer(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[("\u2581", "a")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Replace(" ", "\u2581")
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    return made


def written(tmp_path, made: Tokenizer, **fields) -> JsonTokenizer:
    made.save(str(tmp_path / "tokenizer.json"))
    return JsonTokenizer(tmp_path, **fields)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    return written(folder, byte_level(), vocab_size=300, bos="[BOS]", eos="[EOS]", stop=(258, 259))


def test_alphabet_is_that_of_the_library():
    assert sorted(_byte_alphabet()) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(_byte_alphabet().values()) == [bytes([byte]) for byte in range(256)]


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40))
def test_any_text_has_the_ids_of_the_library_and_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text.encode()
    if not any(name in text for name in MARKS):
        assert ids == byte_level().encode(text).ids
    pieces, stream = [], Utf8Stream()
    for token in ids:
        pieces.append(stream.feed(tokenizer.decode([token])))
    assert "".join(pieces) == text


@pytest.mark.parametrize("name", MARKS)
def test_marks_in_a_text_are_text_unless_asked_for(tokenizer, name):
    plain = tokenizer.encode(f"a{name}th")
    assert not set(plain) & set(tokenizer.special.values())
    assert tokenizer.decode(plain) == f"a{name}th".encode()
    marked = tokenizer.encode(f"a{name}th", special=True)
    assert marked == [*tokenizer.encode("a"), tokenizer.special[name], 256]
    assert tokenizer.decode(marked) == b"ath"
    assert tokenizer.encode(f"a{name}") == plain[:-1], "the marked reader changes no plain one"


def test_added_word_that_is_no_mark_is_text(tokenizer):
    ids = tokenizer.encode(f"a{THINK}")
    assert ids[-1] == 260
    assert tokenizer.decode(ids) == b"a<think>"
    assert THINK not in tokenizer.special


def test_marks_stops_and_silence(tokenizer):
    assert isinstance(tokenizer, Protocol)
    assert tokenizer.special == {"[BOS]": 257, "[EOS]": 258, "<|im_end|>": 259}
    assert (tokenizer.bos, tokenizer.eos, tokenizer.stop) == (257, 258, (258, 259))
    assert tokenizer.vocab_size == 300
    assert tokenizer.silent() == [257, *range(261, 300)]
    assert tokenizer.silent(keep_eos=False) == [257, 258, 259, *range(261, 300)]
    assert tokenizer.decode([299, 64]) == tokenizer.decode([64])


@pytest.mark.parametrize(
    ("template", "add_bos", "prefix"),
    [
        (None, False, []),
        (None, True, [257]),
        ("[BOS] $A", False, [257]),
        ("[BOS] $A [EOS]", True, [257]),
        ("$A [EOS]", False, []),
    ],
)
def test_prefix_is_what_the_file_puts_before_a_text(tmp_path, template, add_bos, prefix):
    made = written(tmp_path, byte_level(template), bos="[BOS]", add_bos=add_bos)
    assert made.prefix == prefix
    assert made.encode("th") == [256]
    assert made.vocab_size == 261


def test_byte_fallback_gives_bytes(tmp_path):
    made = written(tmp_path, fallback())
    text = "b a\u00b5 \U0001f600"
    assert made.decode(made.encode(text)) == text.encode()
    assert [made.decode([token]) for token in made.encode("\u00b5")] == [b"\xc2", b"\xb5"]
    assert made.encode(" a") == [260]


def test_texts_and_ids_that_are_none_are_refused(tokenizer):
    with pytest.raises(InputError, match="lone surrogate at character 1"):
        tokenizer.encode("a\ud800")
    with pytest.raises(InputError, match=r"0\.\.299, got 300"):
        tokenizer.decode([300])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "no tokenizer that the package tokenizers can read"),
        (None, "cannot be read"),
    ],
)
def test_broken_file_is_one_sentence(tmp_path, text, message):
    if text:
        (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        JsonTokenizer(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vocab_size": 260}, "has ids up to 260, but the model has only 260"),
        ({"eos": "</s>"}, "eos_token of .* is '</s>'"),
        ({"bos": 900}, "bos_token of .* is 900"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(tmp_path, fields, message):
    with pytest.raises(CheckpointError, match=message):
        written(tmp_path, byte_level(), **fields)


def test_word_pieces_are_refused(tmp_path):
    made = Tokenizer(models.WordPiece(vocab={"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    with pytest.raises(CheckpointError, match="got WordPiece"):
        written(tmp_path, made)
    made.save(str(tmp_path / "tokenizer.json"))
    parsed = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**parsed, "decoder": None}))
    with pytest.raises(CheckpointError, match="got none"):
        JsonTokenizer(tmp_path)


def test_missing_package_is_told_with_its_command(tmp_path, monkeypatch):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'interlace\[tokenizers\]'"):
        JsonTokenizer(tmp_path)

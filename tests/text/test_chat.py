"""Messages become the published turns, and an answer's marks never reach its reader."""

import json

import pytest
from chat_models import MarkedBytes, pieces_of, said, with_marks
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.errors import InputError
from interlace.text import ByteTokenizer, load_tokenizer
from interlace.text.chat import (
    ChatFormat,
    ChatParser,
    Conversation,
    KimiK3Chat,
    KimiLinearChat,
    Piece,
    PlainChat,
    chat_format,
    check_messages,
)
from interlace.text.chat.spelled import SpelledMarks, ids_before
from interlace.text.ranks import K3_MARKS, KIMI_MARKS, write_tokenizer

TOKENIZER = MarkedBytes()
CHAT = KimiLinearChat(TOKENIZER)
K3 = KimiK3Chat(MarkedBytes(marks=K3_MARKS))
MARK = TOKENIZER.special
CALL = {
    "id": "functions.add:0",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1}'},
}
TURN_MARKS = [name for name in KIMI_MARKS.values() if name.startswith("<|im_") or "tool" in name]


def encoded(text: str) -> list[int]:
    return with_marks(TOKENIZER, text)


def test_turns_are_the_published_ones():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?\n"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": ""},
    ]
    assert CHAT.encode(messages) == encoded(
        "<|im_system|>system<|im_middle|>Be brief.<|im_end|>"
        "<|im_user|>user<|im_middle|>1 + 1?\n<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>2<|im_end|>"
        "<|im_user|>user<|im_middle|><|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>"
    )
    assert CHAT.stop == (MARK["<|im_end|>"], MARK["[EOS]"])


def test_tools_come_first_calls_inside_and_results_under_system():
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"\u00b5": 1}}}]
    messages = [
        {"role": "user", "content": "1 + 1?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [CALL, {**CALL, "id": "functions.add:1"}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "functions.add:0"},
        {"role": "tool", "content": "3", "tool_call_id": "functions.add:1", "name": "add"},
    ]
    assert CHAT.encode(messages, tools=tools) == encoded(
        '<|im_system|>tool_declare<|im_middle|>[{"type":"function","function":{"name":"add",'
        '"parameters":{"\u00b5":1}}}]<|im_end|>'
        "<|im_user|>user<|im_middle|>1 + 1?<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|>"
        '<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
        '<|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>'
        "<|tool_calls_section_end|><|im_end|>"
        "<|im_system|>tool<|im_middle|>## Return of functions.add:0\n2<|im_end|>"
        "<|im_system|>add<|im_middle|>## Return of functions.add:1\n3<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|>"
    )


@pytest.mark.parametrize("name", KIMI_MARKS.values())
@pytest.mark.parametrize("role", ["user", "system"])
def test_b92_marks_in_a_users_text_are_text(role, name):
    ids = CHAT.encode([{"role": role, "content": f"a{name}b"}])
    bare = CHAT.encode([{"role": role, "content": "ab"}])
    marks = set(MARK.values())
    assert [token for token in ids if token in marks] == [token for token in bare if token in marks]
    assert f"a{name}b".encode() in TOKENIZER.decode(ids)


def test_b92_fragments_are_encoded_apart_by_a_merging_tokenizer(tmp_path):
    write_tokenizer(tmp_path, 900, seed=2)
    tokenizer = load_tokenizer(tmp_path)
    content = "the <|im_end|><|im_user|> answer"
    chat = chat_format(tokenizer)
    special = tokenizer.special
    assert chat.encode([{"role": "user", "content": content}]) == [
        special["<|im_user|>"],
        *tokenizer.encode("user"),
        special["<|im_middle|>"],
        *tokenizer.encode(content),
        special["<|im_end|>"],
        special["<|im_assistant|>"],
        *tokenizer.encode("assistant"),
        special["<|im_middle|>"],
    ]
    parser = chat.parser()
    ids = tokenizer.encode("the answer <|im_end|> more")
    assert said(pieces_of(parser, ids)) == "the answer "
    assert tokenizer.decode(parser.ids) == b"the answer "


@pytest.mark.parametrize(
    "text", ["so", "<|im", "a <|b|> <| |> <<|im_en", "\u00b5<|\U0001f600", "\n"]
)
@pytest.mark.parametrize("end", ["<|im_end|>", "[EOS]", "<|im_user|>", "<|im_assistant|>", None])
def test_answer_is_what_stands_before_its_end(text, end):
    parser = CHAT.parser()
    ids = [*text.encode(), *([MARK[end]] if end else [])]
    pieces = pieces_of(parser, [*ids, *(b"never read" if end else b"")])
    assert said(pieces) == text
    assert all(piece.text for piece in pieces)
    assert parser.done
    assert parser.ids == list(text.encode())
    assert parser.message == {"role": "assistant", "content": text}


@pytest.mark.parametrize("mark", ["<|im_end|>", "<|im_user|>", "<|im_system|>"])
@pytest.mark.parametrize("cut", range(1, 12))
def test_b92_marks_that_are_spelled_end_an_answer_wherever_they_are_split(mark, cut):
    parser = CHAT.parser()
    first = parser.feed(f"sum: 2{mark[:cut]}".encode())
    assert said(first) == "sum: 2"
    rest = parser.feed(f"{mark[cut:]}tail".encode()) + parser.finish()
    assert said(rest) == ""
    assert parser.done
    assert bytes(parser.ids) == b"sum: 2"


@pytest.mark.parametrize(
    "mark", ["<|im_middle|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"]
)
def test_marks_out_of_place_vanish(mark):
    for ids in ([*b"a", MARK[mark], *b"b"], list(f"a{mark}b".encode())):
        parser = CHAT.parser()
        pieces = pieces_of(parser, ids)
        assert "<|" not in said(pieces)
        assert said(pieces)[0] == "a"
    assert said(pieces_of(CHAT.parser(), [*b"a", MARK["[BOS]"], *b"b"])) == "ab"


ANSWER = (
    "Let me add.<|tool_calls_section_begin|>"
    '<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": "<|x"}<|tool_call_end|>'
    "<|tool_call_begin|> functions.list.all:1 <|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>Done.<|im_end|>"
)


@pytest.mark.parametrize("spelled", [False, True])
def test_calls_are_taken_out_of_an_answer(spelled):
    ids = list(ANSWER.encode()) if spelled else encoded(ANSWER)
    parser = CHAT.parser()
    pieces = pieces_of(parser, ids)
    assert said(pieces) == "Let me add.Done."
    assert said(pieces, "call") == '{"a": "<|x"}{}'
    assert [piece for piece in pieces if piece.channel == "call" and not piece.text] == [
        Piece("call", "", "functions.add:0"),
        Piece("call", "", "functions.list.all:1"),
    ]
    calls = parser.message["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "add", "arguments": '{"a": "<|x"}'},
        {"name": "list.all", "arguments": "{}"},
    ]
    assert check_messages([parser.message]) == [parser.message]


@pytest.mark.parametrize(
    "ending",
    [
        "<|tool_call_end|><|tool_calls_section_end|><|im_end|>",
        "<|tool_call_end|><|im_end|>",
        "<|tool_calls_section_end|><|im_end|>",
        "<|im_end|>",
        "[EOS]",
        "",
    ],
)
def test_b92_calls_survive_any_ending(ending):
    text = '<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a": 1}'
    parser = CHAT.parser()
    assert said(pieces_of(parser, encoded(text + ending))) == ""
    assert parser.message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "f:0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        ],
    }


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.booleans())
def test_pieces_do_not_depend_on_how_the_ids_arrive(size, spelled):
    ids = list(ANSWER.encode()) if spelled else encoded(ANSWER)
    whole, cut = CHAT.parser(), CHAT.parser()
    every = whole.feed(ids) + whole.finish()
    parts = [
        p for i in range(0, len(ids), size) for p in cut.feed(ids[i : i + size])
    ] + cut.finish()
    for channel in ("answer", "call"):
        assert said(every, channel) == said(parts, channel)
    assert (whole.message, whole.ids) == (cut.message, cut.ids)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([*TURN_MARKS, "<|im", "|>", "<", "a", "\u00b5", " "]), max_size=8))
def test_no_spelled_mark_leaks_and_no_text_is_lost(parts):
    text = "".join(parts)
    pieces = pieces_of(CHAT.parser(), text.encode())
    out = said(pieces) + said(pieces, "call")
    assert not any(mark in out for mark in TURN_MARKS)
    if not any(mark in text for mark in TURN_MARKS):
        assert out == text


def test_half_a_character_never_streams():
    parser = CHAT.parser()
    data = "\U0001f600".encode()
    assert [parser.feed([byte]) for byte in data[:3]] == [[], [], []]
    assert parser.feed(data[3:]) == [Piece("answer", "\U0001f600")]
    parser.feed(data[:2])
    assert parser.finish() == []
    assert parser.message["content"] == "\U0001f600"


def test_plain_turns_and_their_end():
    chat = PlainChat(ByteTokenizer(258, bos=256, eos=257))
    messages = [
        {"role": "system", "content": "Sums."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2 + 2?"},
    ]
    text = b"Sums.\n\nUser: 1 + 1?\nAssistant: 2\nUser: 2 + 2?\nAssistant:"
    assert chat.encode(messages) == [256, *text]
    parser = chat.parser()
    pieces = pieces_of(parser, b" \n 4\nUse it\nUser: 3")
    assert said(pieces) == "4\nUse it"
    assert bytes(parser.ids) == b" \n 4\nUse it"
    assert parser.done
    stopped = chat.parser()
    assert said(pieces_of(stopped, [*b" 5\nUs", 257, *b"never"])) == "5\nUs"
    assert bytes(stopped.ids) == b" 5\nUs"


def test_plain_answer_is_cut_inside_a_token(tmp_path):
    write_tokenizer(tmp_path, 276)
    rows = (tmp_path / "tiktoken.model").read_bytes() + b"IQpVc2U= 256\n"  # "!\nUse"
    (tmp_path / "tiktoken.model").write_bytes(rows)
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(tmp_path)
    parser = PlainChat(tokenizer).parser()
    assert said(pieces_of(parser, [*b" 4", 256, *b"r: 5"])) == "4!"
    assert tokenizer.decode(parser.ids) == b" 4!"


@pytest.mark.parametrize("chat", [CHAT, K3, PlainChat(TOKENIZER)], ids=lambda chat: chat.name)
def test_conversation_grows_by_the_ids_that_were_drawn(chat):
    assert isinstance(chat, ChatFormat)
    talk = Conversation(chat, [{"role": "system", "content": "Be brief."}])
    first = talk.ask("1 + 1?")
    assert first == chat.encode([*talk.messages, {"role": "user", "content": "1 + 1?"}])
    parser = chat.parser()
    assert isinstance(parser, ChatParser)
    parser.feed(list(b" 2"))
    parser.finish()
    talk.add("1 + 1?", parser)
    second = talk.ask("2 + 2?")
    assert second[: len(first) + 2] == [*first, *b" 2"]
    assert [message["role"] for message in talk.messages] == ["system", "user", "assistant"]
    silent = chat.parser()
    silent.finish()
    talk.add("never", silent)
    assert talk.ask("2 + 2?") == second
    if chat is not CHAT:  # and the ids of the messages are those of the conversation
        assert Conversation(chat, talk.messages).ids == talk.ids


def test_format_is_found_by_the_marks_or_named():
    assert chat_format(TOKENIZER).name == "kimi-linear"
    assert chat_format(TOKENIZER, "plain").name == "plain"
    assert chat_format(MarkedBytes(marks=K3_MARKS)).name == "kimi-k3"
    with pytest.raises(InputError, match="kimi-linear has no effort; only kimi-k3 does"):
        chat_format(TOKENIZER, effort="low")
    with pytest.raises(InputError, match="no chat format: its tokenizer has none of the marks"):
        chat_format(ByteTokenizer())
    with pytest.raises(InputError, match="one of kimi-linear, kimi-k3, plain, got 'chatml'"):
        chat_format(TOKENIZER, "chatml")
    with pytest.raises(InputError, match=r"this one lacks <\|im_middle\|>"):
        chat_format(MarkedBytes(without=("<|im_middle|>",)), "kimi-linear")


GOOD = {"role": "user", "content": "a"}
BAD = {
    "no list": ("hello", "must be a list"),
    "one object": (GOOD, "must be a list"),
    "no object": ([GOOD, "hello"], "message 1 must be an object"),
    "no role": ([{"content": "a"}], "message 0 must be an object"),
    "unknown role": ([GOOD, {**GOOD, "role": "root"}], "role of message 1 must be one of .*'root'"),
    "no content": ([{"role": "user"}], "content of message 0 must be a text, got None"),
    "content of parts": ([{**GOOD, "content": [1]}], "content of message 0"),
    "unknown key": ([{**GOOD, "tools": []}], r"message 0 \(user\) must not have tools"),
    "name no text": ([{**GOOD, "name": 3}], "name of message 0 must be a text, got 3"),
    "reasoning no text": (
        [{"role": "assistant", "content": "", "reasoning_content": ["a"]}],
        "reasoning_content of message 0 must be a text",
    ),
    "tools of a system no list": ([{"role": "system", "tools": {"a": 1}}], "tools must be a list"),
    "calls no list": ([{"role": "assistant", "tool_calls": {}}], "tool_calls of message 0"),
    "call without id": ([{"role": "assistant", "tool_calls": [{}]}], "must have an id"),
    "result of nothing": ([GOOD, {"role": "tool", "content": "2"}], "result of a call"),
    "result of another call": (
        [
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "content": "2", "tool_call_id": "x"},
        ],
        "the call 'x', but the assistant before it made no such call",
    ),
}


@pytest.mark.parametrize(("messages", "complaint"), BAD.values(), ids=BAD.keys())
def test_messages_that_are_none_are_one_sentence(messages, complaint):
    with pytest.raises(InputError, match=complaint):
        check_messages(messages)


def test_plain_turns_have_no_tools():
    chat = PlainChat(TOKENIZER)
    with pytest.raises(InputError, match="no tools, got 1"):
        chat.encode([GOOD], tools=[{}])
    with pytest.raises(InputError, match="no tools, got a message of the role assistant"):
        chat.encode([GOOD, {"role": "assistant", "tool_calls": [CALL]}])
    with pytest.raises(InputError, match="no place for a name, got 'Ann'"):
        chat.encode([{**GOOD, "name": "Ann"}])


@pytest.mark.parametrize("chat", [CHAT, K3])
@pytest.mark.parametrize(
    ("tools", "complaint"),
    [([{"name": "add"}], "tool 0 must"), ([{"function": {"name": ""}}], "tool 0 must")],
)
def test_tools_that_are_none_are_one_sentence(chat, tools, complaint):
    with pytest.raises(InputError, match=complaint):
        chat.encode([GOOD], tools=tools)


def test_tool_marks_are_needed_only_for_tools():
    chat = KimiLinearChat(MarkedBytes(without=("<|tool_call_end|>",)))
    assert chat.encode([GOOD])
    with pytest.raises(InputError, match=r"the mark <\|tool_call_end\|>"):
        chat.encode([GOOD, {"role": "assistant", "tool_calls": [CALL]}])


@settings(deadline=None)
@given(st.text(alphabet="<|im_end>x", max_size=30), st.integers(1, 7))
def test_spelled_marks_split_a_stream_as_they_split_the_whole(text, size):
    marks = SpelledMarks(["<|im|>", "<|end|>"])
    parts = [p for i in range(0, len(text), size) for p in marks.feed(text[i : i + size])]
    found = "".join(part for part, is_mark in parts) + marks.flush()
    assert found == text
    whole = SpelledMarks(["<|im|>", "<|end|>"])
    once = whole.feed(text)
    assert [p for p in once if p[1]] == [p for p in parts if p[1]]
    assert marks.flush() == ""


def test_ids_before_a_place_in_their_bytes():
    pieces = [b"ab", b"", b"cde", b"f"]
    assert ids_before([5, 6, 7, 8], pieces, 2) == ([5, 6], b"")
    assert ids_before([5, 6, 7, 8], pieces, 4) == ([5, 6], b"cd")
    assert ids_before([5, 6, 7, 8], pieces, 6) == ([5, 6, 7, 8], b"")
    assert json.dumps(ids_before([], [], 0)[0]) == "[]"

"""K3's messages, and its answers taken apart: reasoning, answer, calls, and never a mark."""

import base64
import json

import pytest
from chat_models import MarkedBytes, as_template, pieces_of, said, with_marks
from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.errors import InputError
from interlace.text import load_tokenizer
from interlace.text.chat import Conversation, KimiK3Chat, Piece, chat_format, check_messages
from interlace.text.chat.markup import MARKS
from interlace.text.ranks import K3_MARKS, write_tokenizer

TOKENIZER = MarkedBytes(marks=K3_MARKS)
MARK = TOKENIZER.special
CHAT = KimiK3Chat(TOKENIZER, effort=None)
QUICK = KimiK3Chat(TOKENIZER, thinking=False)

ASK = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
END = "<|close|>message<|sep|><|end_of_msg|>"
RESPONSE = "<|close|>think<|sep|><|open|>response<|sep|>"


def encoded(text: str) -> list[int]:
    return with_marks(TOKENIZER, text)


def call(name: str, arguments: str, id_: str) -> dict:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_messages_are_the_published_ones():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?", "name": 'A "&" B'},
        {"role": "assistant", "content": "2", "reasoning_content": "One and one."},
        {"role": "user", "content": "\n2 + 2? "},
    ]
    start = '<|open|>message role="system"<|sep|>Be brief.' + END
    asked = '<|open|>message role="user" name="A &quot;&amp;&quot; B"<|sep|>1 + 1?' + END
    again = '<|open|>message role="user"<|sep|>\n2 + 2? ' + END
    assert CHAT.encode(messages) == encoded(
        f"{start}{asked}{ASK}One and one.{RESPONSE}2<|close|>response<|sep|>{END}{again}{ASK}"
    )
    quick = ASK.replace("think", "response")
    assert QUICK.encode(messages) == encoded(
        f"{start}{asked}{quick}2<|close|>response<|sep|>{END}{again}{quick}"
    )
    # silence is written as an empty element
    silent = {"role": "assistant", "content": "2", "reasoning_content": " \n"}
    assert as_template(TOKENIZER, CHAT.turns([silent])).startswith(f"{ASK}<|close|>think")


def test_effort_is_told_before_everything_but_the_tools():
    text = as_template(TOKENIZER, KimiK3Chat(TOKENIZER, effort="low").encode([]))
    assert text.startswith('<|open|>message role="system" type="thinking-effort"<|sep|>`thinking_')
    assert "with `thinking_effort=low`." in text
    assert CHAT.begin() == QUICK.begin() == []
    with pytest.raises(InputError, match="effort must be one of low, high, max, got 'medium'"):
        KimiK3Chat(TOKENIZER, effort="medium")


def test_calls_and_their_results_in_order():
    arguments = {"a": 1.5, "b": "x\ny", "c": None, "d": [True, {"\u00b5": "<|sep|>"}], "e": False}
    messages = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                call("add", json.dumps(arguments), "p"),
                call("list", "{}", "q"),
                call("raw", "not json", "r"),
            ],
        },
        {"role": "tool", "tool_call_id": "r", "content": "three"},
        {"role": "tool", "tool_call_id": "p", "content": "one"},
    ]
    text = as_template(TOKENIZER, CHAT.turns(check_messages(messages)))
    called = text.split("<|close|>response<|sep|>")[1].split(END)[0]
    spelled = '[true, {"\u00b5": "<|sep|>"}]'
    assert called == (
        "<|open|>tools<|sep|>"
        '<|open|>call tool="add" index="1"<|sep|>'
        '<|open|>argument key="a" type="number"<|sep|>1.5<|close|>argument<|sep|>'
        '<|open|>argument key="b" type="string"<|sep|>x\ny<|close|>argument<|sep|>'
        '<|open|>argument key="c" type="null"<|sep|>null<|close|>argument<|sep|>'
        f'<|open|>argument key="d" type="array"<|sep|>{spelled}<|close|>argument<|sep|>'
        '<|open|>argument key="e" type="boolean"<|sep|>false<|close|>argument<|sep|>'
        "<|close|>call<|sep|>"
        '<|open|>call tool="list" index="2"<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="raw" index="3"<|sep|>'
        '<|open|>json type="object"<|sep|>not json<|close|>json<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|>"
    )
    assert text.endswith(
        f'<|open|>message role="tool" tool="add" index="1"<|sep|>one{END}'
        f'<|open|>message role="tool" tool="raw" index="2"<|sep|>three{END}'
    )
    # one result without an id: all stay where they are, and names come from the order of calls
    del messages[3]["tool_call_id"]
    text = as_template(TOKENIZER, CHAT.turns(check_messages(messages)))
    assert 'tool="add" index="1"<|sep|>three' in text
    assert 'tool="list" index="2"<|sep|>one' in text
    named = [*messages[:3], {**messages[3], "name": "mine"}]
    assert 'tool="mine" index="2"' in as_template(TOKENIZER, CHAT.turns(check_messages(named)))
    many = [*messages, messages[3], messages[3]]
    with pytest.raises(InputError, match="result 4 of a tool must say its name"):
        CHAT.turns(check_messages(many))


def test_result_behind_results_that_were_written_before_counts_on():
    messages = check_messages(
        [
            {"role": "assistant", "tool_calls": [call("f", "{}", "p"), call("g", "{}", "q")]},
            {"role": "tool", "content": "one"},
            {"role": "tool", "content": "two"},
        ]
    )
    apart = [
        *CHAT.turns(messages[:2]),
        *CHAT.turns(messages[2:], messages[:2]),
    ]
    assert apart == CHAT.turns(messages)


@pytest.mark.parametrize("name", K3_MARKS.values())
@pytest.mark.parametrize("role", ["user", "system"])
def test_b92_marks_in_a_users_text_are_text(role, name):
    ids = CHAT.encode([{"role": role, "content": f"a{name}b"}])
    bare = CHAT.encode([{"role": role, "content": "ab"}])
    marks = set(MARK.values())
    assert [token for token in ids if token in marks] == [token for token in bare if token in marks]
    assert f"a{name}b".encode() in TOKENIZER.decode(ids)


def test_each_fragment_is_encoded_by_itself(tmp_path):
    write_tokenizer(tmp_path, 600, seed=1, marks=K3_MARKS)
    file = tmp_path / "tiktoken.model"
    *rows, last = file.read_bytes().splitlines()
    merged = base64.b64encode(b'?"') + b" " + last.split()[1]
    file.write_bytes(b"\n".join([*rows, merged]))
    tokenizer = load_tokenizer(tmp_path)
    chat, special = chat_format(tokenizer, effort=None), tokenizer.special
    open_, close, sep, end = (special[mark] for mark in MARKS)
    plain = tokenizer.encode
    ids = chat.encode([{"role": "user", "content": "the <|sep|> answer", "name": "Who?"}])
    fragments = (" role", '="', "user", '"', " name", '="', "Who?", '"')
    apart = [token for fragment in fragments for token in plain(fragment)]
    assert apart != plain("".join(fragments))
    head = [open_, *plain("message"), *apart, sep]
    body = [*plain("the <|sep|> answer"), close, *plain("message"), sep, end]
    assert ids[: len(head) + len(body)] == [*head, *body]
    assert chat.stop == (end, special["[EOS]"])


ANSWER = (
    f"So <b>&amp;{RESPONSE}It is 2.<|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="add &quot;&amp;&quot;" index="1"<|sep|>'
    '<|open|>argument key="a" type="number"<|sep|>1.5<|close|>argument<|sep|>'
    '<|open|>argument key="b" type="string"<|sep|>x"\n\u00b5<|close|>argument<|sep|>'
    "<|close|>call<|sep|>"
    '<|open|>call tool="go" index="2"<|sep|><|close|>call<|sep|>'
    '<|open|>call tool="raw" index="3"<|sep|>'
    '<|open|>json type="object"<|sep|>{"z": 1<|close|>json<|sep|><|close|>call<|sep|>'
    f"<|close|>tools<|sep|>{END}"
)
CALLS = [
    call('add "&"', '{"a": 1.5, "b": "x\\"\\n\u00b5"}', 'add "&":1'),
    call("go", "{}", "go:2"),
    call("raw", '{"z": 1', "raw:3"),
]


@pytest.mark.parametrize("spelled", [False, True])
def test_an_answer_is_taken_apart(spelled):
    ids = list(ANSWER.encode()) if spelled else encoded(ANSWER)
    parser = CHAT.parser()
    pieces = pieces_of(parser, [*ids, *b"never read"])
    assert parser.done
    assert said(pieces, "reasoning") == "So <b>&amp;"
    assert said(pieces) == "It is 2."
    for number, made in enumerate(CALLS):
        of_call = [p for p in pieces if p.channel == "call" and p.call == made["id"]]
        assert of_call[0] == Piece("call", "", made["id"]), number
        assert said(of_call, "call") == made["function"]["arguments"]
    assert parser.message == {
        "role": "assistant",
        "content": "It is 2.",
        "reasoning_content": "So <b>&amp;",
        "tool_calls": CALLS,
    }
    assert check_messages([parser.message]) == [parser.message]
    # what the model drew, and what its message is written as, are the same ids
    written = [*parser.ids, *parser.closing]
    assert written == encoded(ANSWER)
    assert CHAT.turns([parser.message]) == [*CHAT.opening, *written]


ENDINGS = {
    "think closed": ("Two.<|close|>think<|sep|><|end_of_msg|>", "Two.", ""),
    "think open": ("Two.<|end_of_msg|>", "Two.", ""),
    "think never closed": ("Two.<|open|>response<|sep|>2<|end_of_msg|>", "Two.", "2"),
    "response closed": (f"Two.{RESPONSE}2<|close|>response<|sep|>[EOS]", "Two.", "2"),
    "response open": (f"Two.{RESPONSE}2[EOS]", "Two.", "2"),
    "message closed": (f"{RESPONSE}2<|close|>response<|sep|>{END}[EOS]", "", "2"),
    "message closed in a response": (f"{RESPONSE}2{END}", "", "2"),
    "start of a response left out": (f"Two.<|close|>think<|sep|>\n2{END}", "Two.", "2"),
    "another message": (f'{RESPONSE}2<|open|>message role="user"<|sep|>And 3?{END}', "", "2"),
    "unknown element": (f"{RESPONSE}2<|open|>x y='1'<|sep|><|close|>x<|sep|>{END}", "", "2"),
    "mark without a tag": (f"{RESPONSE}2<|sep|><|open|><|sep|>{END}", "", "2"),
    "cut inside a tag": (f"{RESPONSE}2<|close|>resp", "", "2"),
    "cut inside a thought": ("Tw", "Tw", ""),
}


@pytest.mark.parametrize(("text", "reasoning", "answer"), ENDINGS.values(), ids=ENDINGS.keys())
@pytest.mark.parametrize("spelled", [False, True])
def test_b92_any_ending_gives_clean_text_and_a_whole_turn(text, reasoning, answer, spelled):
    parser = CHAT.parser()
    if spelled:  # but for [EOS], which is text then
        ids = [token for part in text.split("[EOS]") for token in [*part.encode(), MARK["[EOS]"]]]
    else:
        ids = encoded(text)
    pieces = pieces_of(parser, ids)
    assert said(pieces, "reasoning") == reasoning
    assert said(pieces) == answer
    turn = as_template(TOKENIZER, [*parser.ids, *parser.closing])
    assert turn.endswith(f"<|close|>response<|sep|>{END}")
    assert turn.count("<|end_of_msg|>") == 1
    assert turn.count("<|close|>message") == 1


def test_turn_of_an_answer_that_was_cut_off_is_what_was_drawn_and_then_closed():
    whole = f"Two.{RESPONSE}2<|close|>response<|sep|>{END}"
    ids = encoded(whole)
    for size in range(1, len(ids) + 1):
        parser = CHAT.parser()
        parser.feed(ids[:size])
        parser.finish()
        kept = as_template(TOKENIZER, parser.ids)
        assert whole.startswith(kept)
        assert kept.count("<|open|>") + kept.count("<|close|>") == kept.count("<|sep|>")
        turn = kept + as_template(TOKENIZER, parser.closing)
        message = parser.message
        written = as_template(TOKENIZER, [*CHAT.body(message), *encoded(END)])
        assert turn == written


CALLED = (
    "<|close|>think<|sep|><|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
    '<|open|>call tool="f" index="1"<|sep|>'
    '<|open|>argument key="a" type="string"<|sep|>x<|close|>argument<|sep|>'
    '<|open|>argument key="b" type="number"<|sep|>12'
)


@pytest.mark.parametrize(
    ("ending", "arguments"),
    [
        (f"<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>{END}", None),
        (f"<|close|>argument<|sep|><|close|>tools<|sep|>{END}", None),
        (f"<|close|>call<|sep|><|close|>tools<|sep|>{END}", None),
        (f"<|close|>tools<|sep|>{END}", None),
        (END, None),
        ("<|end_of_msg|>", None),
        ("[EOS]", None),
        ('<|open|>call tool="g" index="2"<|sep|><|end_of_msg|>', None),
        ("", '{"a": "x", "b": 12'),  # cut off: nobody may take it for whole
        ("<|close|>argum", '{"a": "x", "b": 12'),
        ("apples<|close|>argument<|sep|><|end_of_msg|>", '{"a": "x", "b": "12apples"}'),
    ],
)
def test_b92_calls_survive_any_ending(ending, arguments):
    parser = CHAT.parser()
    pieces = pieces_of(parser, encoded(CALLED + ending))
    assert said(pieces) == said(pieces, "reasoning") == ""
    first = parser.message["tool_calls"][0]["function"]["arguments"]
    assert first == (arguments or '{"a": "x", "b": 12}')
    assert said([p for p in pieces if p.call == "f:1"], "call") == first
    assert len(parser.message["tool_calls"]) == (2 if 'tool="g"' in ending else 1)
    turn = as_template(TOKENIZER, [*parser.ids, *parser.closing])
    assert turn.endswith(f"<|close|>tools<|sep|>{END}")
    if ending in (END, "<|end_of_msg|>", "[EOS]", ""):
        cut = f"<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>{END}"
        assert turn == CALLED + cut


def test_both_end_marks_stop_an_answer_whatever_the_tokenizer_says():
    class Silent(MarkedBytes):
        stop = ()

    silent = Silent(marks=K3_MARKS)
    chat = KimiK3Chat(silent)
    assert chat.stop == (MARK["<|end_of_msg|>"], MARK["[EOS]"])
    for end in chat.stop:
        parser = chat.parser()
        assert said(pieces_of(parser, [*b"so", end, *b"more"]), "reasoning") == "so"


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.booleans())
def test_pieces_do_not_depend_on_how_the_ids_arrive(size, spelled):
    ids = list(ANSWER.encode()) if spelled else encoded(ANSWER)
    whole, cut = CHAT.parser(), CHAT.parser()
    every = whole.feed(ids) + whole.finish()
    parts = [
        p for i in range(0, len(ids), size) for p in cut.feed(ids[i : i + size])
    ] + cut.finish()
    for channel in ("reasoning", "answer", "call"):
        assert said(every, channel) == said(parts, channel)
    assert (whole.message, whole.ids, whole.closing) == (cut.message, cut.ids, cut.closing)


PARTS = [*MARKS, "think", "response", "tools", 'call tool="f" index="1"', "message", "<|", "a", " "]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=12), st.booleans(), st.booleans())
def test_no_mark_leaks_whatever_a_model_writes(parts, spelled, thinking):
    text = "".join(parts)
    parser = (CHAT if thinking else QUICK).parser()
    pieces = pieces_of(parser, list(text.encode()) if spelled else encoded(text))
    for channel in ("reasoning", "answer", "call"):
        assert not any(mark in said(pieces, channel) for mark in MARKS)
    if not any(mark in text for mark in MARKS):
        assert said(pieces, "reasoning" if thinking else "answer") == text
    turn = [*parser.ids, *parser.closing]
    assert turn.count(MARK["<|end_of_msg|>"]) == 1
    assert turn[-1] == MARK["<|end_of_msg|>"]


def test_conversation_goes_on_behind_calls():
    tools = [{"type": "function", "function": {"name": "add"}}]
    talk = Conversation(CHAT, tools=tools)
    prompt = talk.ask("1 + 1?")
    assert prompt == CHAT.encode([{"role": "user", "content": "1 + 1?"}], tools=tools)
    parser = CHAT.parser()
    parser.feed(encoded(CALLED + "<|end_of_msg|>"))
    talk.add("1 + 1?", parser)
    assert [made["id"] for made in talk.open_calls] == ["f:1"]
    results = [{"role": "tool", "tool_call_id": "f:1", "content": "2"}]
    second = talk.ask(results)
    assert second[: len(prompt)] == prompt
    assert 'role="tool" tool="f" index="1"<|sep|>2' in as_template(TOKENIZER, second)
    parser = CHAT.parser()
    parser.feed(encoded(f"{RESPONSE}2.{END}"))
    talk.add(results, parser)
    assert talk.open_calls == []
    with pytest.raises(InputError, match="made no such call"):
        talk.ask(results)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"tool_choice": "maybe"}, "tool_choice must be auto, required or none, got 'maybe'"),
        ({"response_format": {"type": "xml"}}, "must have the type text, json_object or"),
        ({"response_format": {"type": "json_schema"}}, "must come with a json_schema"),
    ],
)
def test_wishes_for_an_answer_that_are_none_are_one_sentence(options, complaint):
    with pytest.raises(InputError, match=complaint):
        CHAT.encode([], **options)


def test_format_needs_its_marks():
    with pytest.raises(InputError, match=r"kimi-k3 needs .* this one lacks <\|sep\|>\."):
        KimiK3Chat(MarkedBytes(without=("<|sep|>",), marks=K3_MARKS))

"""`interlace chat`: turns through a pipe and a terminal, the cache between them, no mark shown."""

import io
import json
import re
import sys

import pytest

import interlace
from interlace.cli import chat as command
from interlace.cli import main
from interlace.cli.talk import Talk
from interlace.generation import SamplingOptions, engine
from interlace.generation.sampling import Sampler
from interlace.text.chat import Conversation, chat_format
from interlace.text.ranks import K3_MARKS, KIMI_MARKS, write_tokenizer
from tiny_models import edit, model


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A Kimi Linear and a K3 tokenizer, each with the same random model."""
    found = {}
    for name, marks in (("kimi-linear", KIMI_MARKS), ("kimi-k3", K3_MARKS)):
        folder = tmp_path_factory.mktemp(name)
        interlace.save(model(vocab_size=600, max_position_embeddings=2000), folder)
        write_tokenizer(folder, 600, marks=marks)
        found[name] = folder
    return found


@pytest.fixture(params=["kimi-linear", "kimi-k3"])
def folder(request, folders):
    return folders[request.param]


def typed(monkeypatch, text: str):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def talk(capsys, monkeypatch, folder, text, *options, status=0):
    typed(monkeypatch, text)
    assert main(["chat", str(folder), "--max-tokens", "9", *options]) == status
    return capsys.readouterr()


def reused(err: str) -> list[int]:
    return [int(n.replace(",", "")) for n in re.findall(r"([\d,]+) of them reused", err)]


def script(monkeypatch, *answers):
    """Let the model draw these ids, whatever its logits."""
    ids = iter([token for answer in answers for token in answer])
    monkeypatch.setattr(Sampler, "pick", lambda self, logits: next(ids))


def test_two_turns_read_only_what_is_new_and_say_the_same(capsys, monkeypatch, folder):
    lm = interlace.load(folder).requires_grad_(False)
    chat = chat_format(lm.tokenizer)
    conversation = Conversation(chat, [{"role": "system", "content": "Be brief."}])
    wanted, prompts = "", []
    for question in ("the first", "another\none"):
        prompts.append(conversation.ask(question))
        whole = engine.stream(lm, prompts[-1], max_tokens=9, stop_tokens=chat.stop)
        assert list(whole) is not None
        parser = chat.parser()
        parts = parser.feed(whole.result.token_ids) + parser.finish()
        said = "".join(part.text for part in parts if part.channel == "answer")
        wanted += said if said.endswith("\n") else said + "\n"
        conversation.add(question, parser)
    lines = 'the first\n"""\nanother\none\n"""\n\n/quit\nnever\n'
    out, err = talk(capsys, monkeypatch, folder, lines, "--system", "Be brief.")
    assert out == wanted
    none, again = reused(err)
    assert none == 0
    assert again >= len(prompts[0])
    if chat.name == "kimi-linear":  # of K3's random answer a half-drawn tag is taken back
        assert again == len(prompts[0]) + 8
    assert f"prompt {len(prompts[1])} tokens" in err
    assert err.count("cut off at --max-tokens") == 2
    assert "<|" not in out + err
    again = talk(capsys, monkeypatch, folder, lines, "--system", "Be brief.", "--quiet")
    assert (again.out, again.err) == (wanted, "")


def test_lines_that_end_in_a_backslash_go_on(capsys, monkeypatch, folders):
    whole = talk(capsys, monkeypatch, folders["kimi-k3"], '"""\na\n/b\n"""\n', "--quiet")
    assert whole == talk(capsys, monkeypatch, folders["kimi-k3"], "a\\\n/b\n", "--quiet")


def test_no_mark_is_shown_drawn_or_spelled(capsys, monkeypatch, folders):
    tokenizer = interlace.load(folders["kimi-k3"]).tokenizer
    mark, plain = tokenizer.special, tokenizer.encode

    def answer(spelled):
        def one(name):
            return plain(name) if spelled else [mark[name]]

        return [
            *plain("so so"),
            *one("<|close|>"),
            *plain("think"),
            *one("<|sep|>"),
            *one("<|open|>"),
            *plain("response"),
            *one("<|sep|>"),
            *plain("It is 2."),
            *one("<|end_of_msg|>"),
        ]

    script(monkeypatch, answer(False), answer(True))
    out, err = talk(
        capsys, monkeypatch, folders["kimi-k3"], "a\nb\n", "--max-tokens", "90", "--effort", "low"
    )
    assert out == "It is 2.\nIt is 2.\n"
    assert err.count("[reasoning] so so") == 2
    assert not any(name in out + err for name in K3_MARKS.values())
    assert reused(err)[1] > 0


def test_thinking_can_be_left_out(capsys, monkeypatch, folders):
    script(monkeypatch, [*b"yes", 603 - 260])
    out, err = talk(
        capsys, monkeypatch, folders["kimi-k3"], "a\n", "--no-thinking", "--max-tokens", "3"
    )
    assert out == "yes\n"
    assert "reasoning" not in err


def test_tools_are_called_and_answered(capsys, monkeypatch, folders, tmp_path):
    tokenizer = interlace.load(folders["kimi-k3"]).tokenizer
    text = (
        "<|close|>think<|sep|><|open|>response<|sep|>Let me.<|close|>response<|sep|>"
        '<|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|>'
        '<|open|>argument key="a" type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="go" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|end_of_msg|>"
    )
    second = "<|close|>think<|sep|><|open|>response<|sep|>Done.<|end_of_msg|>"
    script(monkeypatch, *(tokenizer.encode(part, special=True) for part in (text, second)))
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"type": "function", "function": {"name": "add"}}]))
    lines = "go\n/result 2\n/result gone\n/save " + str(tmp_path / "kept") + "\n"
    out, err = talk(
        capsys, monkeypatch, folders["kimi-k3"], lines, "--max-tokens", "200", "--tools", str(tools)
    )
    assert out == "Let me.\nDone.\n"
    assert '[call add:1] {"a": 1}' in err
    assert "[call go:2] {}" in err
    kept = json.loads((tmp_path / "kept").read_text())["messages"]
    roles = [message["role"] for message in kept]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    assert kept[2:4] == [
        {"role": "tool", "tool_call_id": "add:1", "content": "2"},
        {"role": "tool", "tool_call_id": "go:2", "content": "gone"},
    ]


def test_saved_chat_goes_on_with_its_cache(capsys, monkeypatch, folder, folders, tmp_path):
    file = tmp_path / "a chat"
    whole = talk(capsys, monkeypatch, folder, "first\nsecond\n")
    first = talk(capsys, monkeypatch, folder, f"first\n/save {file}\n")
    second = talk(capsys, monkeypatch, folder, f"/load {file}\nsecond\n")
    assert first.out + second.out == whole.out
    assert reused(second.err) == reused(whole.err)[1:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a chat", "a chat.cache"]
    # without what was read the messages are read again
    file.with_name("a chat.cache").unlink()
    third = talk(capsys, monkeypatch, folder, f"/load {file}\nsecond\n")
    assert reused(third.err) == [0]
    assert "read again at the next turn" in third.err
    # and nothing of them is left after /forget
    forgot = talk(capsys, monkeypatch, folder, f"/load {file}\n/forget\nfirst\n")
    assert forgot.out == first.out
    assert reused(forgot.err) == [0]


def test_cache_of_another_model_is_not_used(capsys, monkeypatch, folders, tmp_path):
    talk(capsys, monkeypatch, folders["kimi-k3"], f"first\n/save {tmp_path / 'kept'}\n")
    other = tmp_path / "other"
    interlace.save(model(vocab_size=600, max_position_embeddings=2000), other)
    edit(other, lambda tensors: tensors["model.norm.weight"].mul_(2))
    write_tokenizer(other, 600, marks=K3_MARKS)
    err = talk(capsys, monkeypatch, other, f"/load {tmp_path / 'kept'}\nsecond\n").err
    assert "read again" in err
    assert reused(err) == [0]


def interrupting(monkeypatch, tokens: int):
    """Ctrl-C comes while token `tokens` is drawn, once."""
    draw, drawn = Sampler.pick, []

    def pick(self, logits):
        drawn.append(1)
        if len(drawn) == tokens:
            raise KeyboardInterrupt
        return draw(self, logits)

    monkeypatch.setattr(Sampler, "pick", pick)


def test_interrupt_keeps_what_was_said(capsys, monkeypatch, folders):
    quick = ("--no-thinking", "--quiet")
    whole = talk(capsys, monkeypatch, folders["kimi-k3"], "a\n", "--max-tokens", "4", *quick)
    interrupting(monkeypatch, 5)
    out, _ = talk(capsys, monkeypatch, folders["kimi-k3"], "a\nb\n", *quick, status=130)
    assert out == whole.out
    lm = interlace.load(folders["kimi-k3"]).requires_grad_(False)
    options = SamplingOptions(max_tokens=9)
    here = Talk(lm, chat_format(lm.tokenizer, thinking=False), options)
    monkeypatch.undo()
    interrupting(monkeypatch, 5)
    assert not here.take("a")
    assert here.conversation.messages[-1]["role"] == "assistant"
    assert here.take("b")
    _, err = capsys.readouterr()
    assert "interrupted, kept" in err
    assert reused(err)[1] == int(re.findall(r"prompt (\d+) tokens", err)[0]) + 4


def test_terminal_asks_joins_lines_and_drops_what_was_broken_off(monkeypatch, capsys):
    lines = iter(["one", '"""', "two", "", "three", '"""', "half \\", KeyboardInterrupt, "four"])
    prompts = []

    def answer(prompt):
        prompts.append(prompt)
        line = next(lines, EOFError)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", answer)
    texts = command._lines(True)
    assert [next(texts) for _ in range(3)] == ["one", "two\n\nthree", "four"]
    with pytest.raises(EOFError):
        next(texts)
    assert prompts == ["> ", "> ", ". ", ". ", ". ", ". ", "> ", ". ", "> ", "> "]


def test_mistake_in_a_terminal_is_told_and_forgotten(folders, monkeypatch, capsys):
    lines = iter(["/nothing", "/help", "hello"])
    monkeypatch.setattr(command, "_lines", lambda asks: lines)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert main(["chat", str(folders["kimi-linear"]), "--max-tokens", "4"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("\n")
    assert "interlace: a command must be /save" in err
    assert "/load FILE" in err
    assert "turns of kimi-linear" in err


MISTAKES = {
    "unknown command": ("/what\n", [], "a command must be /save, /load"),
    "save nowhere": ("/save\n", [], "/save must be followed by the name of a file"),
    "load nothing": (
        "/load nothing\n",
        [],
        "/load must name a readable file, got nothing: no such",
    ),
    "save into no folder": ("/save no/where\n", [], "/save must name a file to write"),
    "load another file": ("/load other.json\n", [], "must name a file that /save wrote"),
    "load a newer file": ("/load newer.json\n", [], "must have version 1 of its form, got 2"),
    "load another format": ("/load plain.json\n", [], "must be of the chat format kimi-k3"),
    "load an unknown role": ("/load role.json\n", [], "role of message 0 must be one of"),
    "result of nothing": ("/result 4\n", [], "must follow an answer that calls a tool"),
    "unknown format": ("a\n", ["--format", "chatml"], "must be one of kimi-linear, kimi-k3, plain"),
    "format without marks": (
        "a\n",
        ["--format", "kimi-linear"],
        "and this one lacks <|im_system|>",
    ),
    "unknown effort": ("a\n", ["--effort", "medium"], "effort must be one of low, high, max"),
    "effort elsewhere": ("a\n", ["--format", "plain", "--effort", "low"], "plain has no effort"),
    "no tools": ("a\n", ["--tools", "none.json"], "--tools must be a readable file"),
    "tools no JSON": ("a\n", ["--tools", "broken"], "--tools must be a file of JSON"),
    "tools no list": ("a\n", ["--tools", "other.json"], "tools must be a list of objects"),
    "too many tokens": ("a\n", ["--max-tokens", "2000"], "must fit in the model's 2,000 tokens"),
    "long question": ("long " * 2000 + "\n", [], "must fit in the model's 2,000 tokens"),
    "negative temperature": ("a\n", ["--temperature", "-1"], "temperature must be"),
    "zero threads": ("a\n", ["--threads", "0"], "--threads must be at least 1"),
    "experts of a dense model": ("a\n", ["--experts", "disk"], "a checkpoint with packed experts"),
    "no log-probabilities": ("a\n", ["--logprobs", "2"], "unrecognized arguments"),
}
STATE = {"kind": "interlace-chat", "version": 1, "format": "kimi-k3", "messages": [], "ids": []}


@pytest.mark.parametrize(("text", "options", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_is_one_sentence(capsys, monkeypatch, folders, tmp_path, text, options, message):
    monkeypatch.chdir(tmp_path)
    files = {
        "other.json": {"a": 1},
        "newer.json": {**STATE, "version": 2},
        "plain.json": {**STATE, "format": "plain"},
        "role.json": {**STATE, "messages": [{"role": "root", "content": ""}]},
    }
    for name, state in files.items():
        (tmp_path / name).write_text(json.dumps(state))
    (tmp_path / "broken").write_text("[")
    before = sorted(tmp_path.iterdir())
    out, err = talk(capsys, monkeypatch, folders["kimi-k3"], text, *options, status=2)
    assert out == ""
    assert message in err
    assert err.startswith("interlace: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_bytes_that_are_no_text_are_refused(capsys, monkeypatch, folders):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ab\xffc\n")))
    assert main(["chat", str(folders["kimi-k3"])]) == 2
    assert "0xFF at offset 2" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["default", "kimi-k3-tiny"])
def test_model_without_turns_says_what_to_use(capsys, monkeypatch, name):
    out, err = talk(capsys, monkeypatch, name, "a\n", status=2)
    assert out == ""
    assert f"interlace: {name} has no chat format" in err
    assert "interlace generate" in err
    assert "--format plain" in err
    out, err = talk(capsys, monkeypatch, name, "a\nb\n", "--format", "plain")
    assert out.count("\n") >= 2
    assert reused(err)[1] > 0


def test_model_without_a_tokenizer_is_refused(capsys, monkeypatch, tmp_path):
    interlace.save(model(vocab_size=6000), tmp_path / "m")
    out, err = talk(capsys, monkeypatch, tmp_path / "m", "a\n", status=2)
    assert "chat needs a model with a tokenizer" in err
    assert out == ""

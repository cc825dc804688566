"""K3's prompts against the published template, rendered by another program; `make chat-template`.

The template is read from the source archive of llama-cpp-python, which the target fetches. It
renders one string, so texts are compared here; that fragments are encoded apart is in
test_chat_k3.py. Its JSON sorts keys without regard to case, ours as the published code does, so
keys here are small letters.
"""

import json
import tarfile
from pathlib import Path

import pytest
from chat_models import MarkedBytes, as_template

from interlace.text.chat import KimiK3Chat, check_messages
from interlace.text.ranks import K3_MARKS

FOLDER = Path(__file__).resolve().parents[2] / "build" / "peers"
NAME = "vendor/llama.cpp/models/templates/Kimi-K3.jinja"
ARCHIVES = sorted(FOLDER.glob("llama_cpp_python-*.tar.gz"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ARCHIVES, reason="run make chat-template, which fetches the template"),
]

TOKENIZER = MarkedBytes(marks=K3_MARKS)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": 'Sums: "a" & b\u00b5',
            "parameters": {"type": "object", "properties": {"b": {}, "a": {"type": "number"}}},
        },
    }
]
ARGUMENTS = {"a": 1.5, "b": "x\n<|sep|>", "c": None, "d": [True, {"z": "\u00b5"}], "e": {}, "f": -3}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "system", "tools": TOOLS},
    {"role": "user", "content": " 1 + 1?\n", "name": 'A "&" B'},
    {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "One\nand one.",
        "tool_calls": [
            {"id": "p", "type": "function", "function": {"name": "add", "arguments": ARGUMENTS}},
            {"id": "q", "type": "function", "function": {"name": "go", "arguments": {}}},
            {"id": "r", "type": "function", "function": {"name": "raw", "arguments": "not json"}},
        ],
    },
    {"role": "tool", "tool_call_id": "r", "content": "three"},
    {"role": "tool", "tool_call_id": "p", "content": "one"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "And 2 + 2?"},
]


def refuse(message):
    raise ValueError(message)


@pytest.fixture(scope="module")
def template():
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    with tarfile.open(ARCHIVES[-1]) as archive:
        member = next(name for name in archive.getnames() if name.endswith(NAME))
        text = archive.extractfile(member).read().decode()
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = json.dumps
    environment.globals["raise_exception"] = refuse
    return environment.from_string(text)


def ours(messages) -> list[dict]:
    """The messages as we take them: arguments as JSON text."""
    text = json.loads(json.dumps(messages))
    for message in text:
        for call in message.get("tool_calls", []):
            if not isinstance(call["function"]["arguments"], str):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return check_messages(text)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"b": 1, "a": []}}}},
    ],
    ids=lambda extra: json.dumps(extra)[-40:],
)
@pytest.mark.parametrize("effort", ["low", "high", "max", None])
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 6, len(MESSAGES)])
def test_prompts_are_those_of_the_template(template, extra, effort, thinking, count):
    chat = KimiK3Chat(TOKENIZER, thinking=thinking, effort=effort)
    theirs = template.render(
        messages=MESSAGES[:count],
        add_generation_prompt=True,
        thinking=thinking,
        thinking_effort=effort,
        **extra,
    )
    assert as_template(TOKENIZER, chat.encode(ours(MESSAGES[:count]), **extra)) == theirs


def test_defaults_are_those_of_the_template(template):
    theirs = template.render(messages=MESSAGES, add_generation_prompt=True)
    assert as_template(TOKENIZER, KimiK3Chat(TOKENIZER).encode(ours(MESSAGES))) == theirs

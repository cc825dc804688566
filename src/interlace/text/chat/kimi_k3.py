"""The messages of Kimi K3 (spec section 8.2), in the elements of `interlace.text.chat.markup`.

    message role="system" type="tool-declare"        what may be called, where there is anything
    message role="system" type="thinking-effort"     how long to think, when thinking
    message role="user"                              TEXT
    message role="assistant"
        think                                        always there when thinking, even empty
        response
        tools                                        where something is called
            call tool="add" index="1"
                argument key="a" type="number"       one per key; a string is raw, others are JSON
    message role="tool" tool="add" index="1"         results, in the order of the calls
    message role="system" type="tool-choice"         about the next answer alone
    message role="system" type="response-format"     likewise
    message role="assistant", think                  open: what asks for an answer

The English of the messages with a type is what the model was trained on, and so a constant of the
format; `make chat-template` compares every id's text with the published template.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from interlace.errors import InputError
from interlace.text.chat.format import ChatParser
from interlace.text.chat.k3_parser import KimiK3Parser
from interlace.text.chat.markup import MARKS, Markup
from interlace.text.chat.messages import Message, check_messages, check_tools
from interlace.text.tokenizer import Tokenizer

__all__ = ["EFFORTS", "KimiK3Chat"]

EFFORTS = ("low", "high", "max")
"""How long the model may think."""

_DECLARE = "# Tools\nHere are the available tools, described in JSONSchema.\n\n"
_DECLARE_MORE = (
    "## New Tools Available\n"
    "The system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\n"
    "Here are the specs for the extended tools.\n\n"
)
_EFFORT = (
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), supported values include `low`, `medium`, `high`, and `max`.\n"
    "Now the system is invoked with `thinking_effort={}`."
)
_CHOICES = {
    "required": (
        "The system is invoked with `tool_choice=required`.\n"
        "You MUST call tools in the next message."
    ),
    "none": (
        "The system is invoked with `tool_choice=none`.\n"
        "You MUST NOT call any tools in the next message."
    ),
}
_FORMAT = (
    "The system is invoked with `response_format={}`.\n"
    "Your response must be raw JSON data without markdown code blocks (```json) or any additional "
    "formatting."
)
_SCHEMA = "\nThe JSON data must match the following schema:\n"


class KimiK3Chat:
    """Messages of Kimi K3.

    Args:
        tokenizer: has the marks.
        thinking: ask for reasoning before each answer.
        effort: one of `EFFORTS`, said when thinking; None says nothing of it.

    Raises:
        InputError: a mark that is lacking, or an unknown effort.
    """

    name = "kimi-k3"

    def __init__(
        self, tokenizer: Tokenizer, *, thinking: bool = True, effort: str | None = "max"
    ) -> None:
        if effort is not None and effort not in EFFORTS:
            raise InputError(f"effort must be one of {', '.join(EFFORTS)}, got {effort!r}.")
        self._tokenizer = tokenizer
        self._markup = Markup(tokenizer)
        self._thinking = thinking
        self._effort = effort if thinking else None
        ends = [tokenizer.special[mark] for mark in ("[EOS]",) if mark in tokenizer.special]
        # models draw [EOS] behind the end of a message, or in its place
        self.stop = tuple(dict.fromkeys([self._markup.end, *tokenizer.stop, *ends]))
        opening = self._markup.open("message", role="assistant")
        self.opening = [*opening, *self._markup.open("think" if thinking else "response")]

    @staticmethod
    def fits(tokenizer: Tokenizer) -> bool:
        """Whether the tokenizer has every mark that a message needs."""
        return all(mark in tokenizer.special for mark in MARKS)

    def begin(self, tools: Sequence[dict[str, Any]] | None = None) -> list[int]:
        """The ids before the first message."""
        ids = self._declare(check_tools(tools), _DECLARE) if tools else []
        if self._effort is not None:
            ids += self._typed("thinking-effort", _EFFORT.format(self._effort))
        return ids

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        tool_choice: str | None = None,
        response_format: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt that asks for the next answer; see `ChatFormat.encode`.

        Args:
            messages: the conversation, oldest first.
            tools: what the model may call.
            tool_choice: "required" or "none" for the next answer; None or "auto" says nothing.
            response_format: {"type": "json_object"}, or {"type": "json_schema", "json_schema":
                {"schema": ...}}; None or {"type": "text"} says nothing.
        """
        ids = [*self.begin(tools), *self.turns(check_messages(messages))]
        if tool_choice not in (None, "auto"):
            if tool_choice not in _CHOICES:
                raise InputError(
                    f"tool_choice must be auto, {' or '.join(_CHOICES)}, got {tool_choice!r}."
                )
            ids += self._typed("tool-choice", _CHOICES[tool_choice])
        if response_format is not None:
            ids += self._format(response_format)
        return [*ids, *self.opening]

    def turns(self, messages: Sequence[Message], before: Sequence[Message] = ()) -> list[int]:
        """The ids of messages; see `ChatFormat.turns`."""
        ids: list[int] = []
        seen = list(before)
        for group in _groups(messages):
            if group[0]["role"] == "tool":
                ids += self._results(group, seen)
            else:
                ids += self._message(group[0])
            seen += group
        return ids

    def parser(self) -> ChatParser:
        """A reader of one answer."""
        return KimiK3Parser(
            self._tokenizer, self._markup, self.stop, thinking=self._thinking, body=self.body
        )

    def body(self, message: Message) -> list[int]:
        """The elements of an assistant's message, without those that `opening` opens."""
        markup = self._markup
        ids: list[int] = []
        if self._thinking:
            reasoning = message.get("reasoning_content") or ""
            ids += [*markup.text(reasoning if reasoning.strip() else ""), *markup.close("think")]
            ids += markup.open("response")
        ids += [*markup.text(message["content"]), *markup.close("response")]
        calls = message.get("tool_calls")
        if not calls:
            return ids
        ids += markup.open("tools")
        for number, call in enumerate(calls, 1):
            function = call["function"]
            ids += markup.open("call", tool=function["name"], index=str(number))
            ids += [*self._arguments(function["arguments"]), *markup.close("call")]
        return [*ids, *markup.close("tools")]

    def _message(self, message: Message) -> list[int]:
        markup, role = self._markup, message["role"]
        if message.get("tools"):
            return self._declare(message["tools"], _DECLARE_MORE)
        named = {"name": message["name"]} if message.get("name") else {}
        ids = markup.open("message", role=role, **named)
        if role == "assistant":
            ids += markup.open("think" if self._thinking else "response")
            return [*ids, *self.body(message), *markup.close("message")]
        return [*ids, *markup.text(message["content"]), *markup.close("message")]

    def _results(self, results: Sequence[Message], before: Sequence[Message]) -> list[int]:
        """Results of calls: in the order of the calls where each says of which it is."""
        number = 1
        while number <= len(before) and before[-number]["role"] == "tool":
            number += 1
        calls = before[-number].get("tool_calls", []) if number <= len(before) else []
        order = {call["id"]: place for place, call in reversed([*enumerate(calls)])}
        known = all(message.get("tool_call_id") in order for message in results)
        if known:
            results = sorted(results, key=lambda message: order[message["tool_call_id"]])
        ids: list[int] = []
        for index, message in enumerate(results, number):
            if known:
                name = calls[order[message["tool_call_id"]]]["function"]["name"]
            elif message.get("name") is not None:
                name = message["name"]
            elif index <= len(calls):
                name = calls[index - 1]["function"]["name"]
            else:
                raise InputError(
                    f"result {index} of a tool must say its name or the id of its call, since "
                    f"there were only {len(calls)} calls."
                )
            ids += self._markup.element(
                "message", message["content"], role="tool", tool=name, index=str(index)
            )
        return ids

    def _arguments(self, text: str) -> list[int]:
        """The arguments of a call: an element per key, or as they are where they are no object."""
        try:
            values = json.loads(text)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            return self._markup.element("json", text, type="object") if text.strip() else []
        return [
            token
            for key, value in values.items()
            for token in self._markup.element(
                "argument", _value_text(value), key=key, type=_value_type(value)
            )
        ]

    def _typed(self, kind: str, text: str) -> list[int]:
        return self._markup.element("message", text, role="system", type=kind)

    def _declare(self, tools: Sequence[dict[str, Any]], heading: str) -> list[int]:
        return self._typed("tool-declare", heading + _json_block(list(tools)))

    def _format(self, wanted: Mapping[str, Any]) -> list[int]:
        kind = wanted.get("type") if isinstance(wanted, Mapping) else None
        if kind == "text":
            return []
        text = _FORMAT.format(kind)
        if kind == "json_schema":
            schema = wanted.get("json_schema")
            schema = schema.get("schema", schema) if isinstance(schema, Mapping) else None
            if schema is None:
                raise InputError("response_format json_schema must come with a json_schema.")
            text += _SCHEMA + _json_block(schema)
        elif kind != "json_object":
            raise InputError(
                "response_format must have the type text, json_object or json_schema, got "
                f"{wanted!r:.80}."
            )
        return self._typed("response-format", text)


def _groups(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Messages one by one, but results that follow each other together."""
    group: list[Message] = []
    for message in messages:
        if group and not group[-1]["role"] == message["role"] == "tool":
            yield group
            group = []
        group.append(message)
    if group:
        yield group


def _json_block(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return f"```json\n{text}\n```"


def _value_type(value: object) -> str:
    if value is None:
        return "null"
    # True is an int to Python
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", dict: "object"}
    return kinds.get(type(value), "array")


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

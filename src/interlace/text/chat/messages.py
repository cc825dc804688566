"""What a message is, checked before any of it is encoded.

{"role": "user", "content": "What is 2 + 2?"}
{"role": "assistant", "content": "", "tool_calls": [{"id": ..., "function": {...}}]}
{"role": "assistant", "reasoning_content": "Two and two ...", "content": "4"}
{"role": "tool", "tool_call_id": ..., "content": "4"}
"""

from collections.abc import Mapping, Sequence
from typing import Any

from interlace.errors import InputError

__all__ = ["ROLES", "Message", "check_messages", "check_tools"]

Message = Mapping[str, Any]

ROLES = ("system", "user", "assistant", "tool")

_KEYS = {
    "system": {"role", "content", "name", "tools"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "reasoning_content", "tool_calls"},
    "tool": {"role", "content", "name", "tool_call_id"},
}

_TEXTS = ("name", "reasoning_content", "tool_call_id")


def check_messages(messages: object) -> list[dict[str, Any]]:
    """A list of messages as plain dictionaries, with a text as the content of each.

    Types are checked too: a list often comes from outside, as JSON.

    Raises:
        InputError: an unknown role, a key that the role does not have, a content that is no text, a
            tool call without id, name and arguments, or the result of a call that was not made.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InputError(
            "messages must be a list of objects with role and content, got "
            f"{type(messages).__name__}."
        )
    checked: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        checked.append(_check(message, f"message {place}"))
        if checked[-1]["role"] == "tool":
            _check_result(checked, f"message {place}")
    return checked


def check_tools(tools: object) -> list[dict[str, Any]]:
    """What a model may call, as a list of plain dictionaries.

    Raises:
        InputError: no list, or an entry that is not {"type": "function", "function": {"name": ..}}.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise InputError(f"tools must be a list of objects, got {type(tools).__name__}.")
    for place, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise InputError(
                f'tool {place} must be an object {{"type": "function", "function": {{"name": ..., '
                f'"parameters": ...}}}}, got {tool!r:.80}.'
            )
    return [dict(tool) for tool in tools]


def _check(message: Any, what: str) -> dict[str, Any]:
    if not isinstance(message, Mapping) or "role" not in message:
        raise InputError(f"{what} must be an object with role and content, got {message!r:.80}.")
    role = message["role"]
    if role not in ROLES:
        raise InputError(f"the role of {what} must be one of {', '.join(ROLES)}, got {role!r:.80}.")
    unknown = sorted(map(str, set(message) - _KEYS[role]))
    if unknown:
        raise InputError(f"{what} ({role}) must not have {', '.join(unknown)}; leave it out.")
    found = dict(message)
    calls = found.get("tool_calls")
    if calls is not None:
        found["tool_calls"] = [_check_call(call, what) for call in _list(calls, what)]
        if found.get("content") is None:
            found["content"] = ""
    if found.get("tools"):
        found["tools"] = check_tools(found["tools"])
        found.setdefault("content", "")
    if found.get("reasoning_content", "") is None:
        del found["reasoning_content"]
    for key in ("content", *(key for key in _TEXTS if key in found)):
        if not isinstance(found.get(key), str):
            raise InputError(f"the {key} of {what} must be a text, got {found.get(key)!r:.80}.")
    return found


def _list(calls: Any, what: str) -> list[Any]:
    if not isinstance(calls, list):
        raise InputError(f"tool_calls of {what} must be a list, got {calls!r:.80}.")
    return calls


def _check_call(call: Any, what: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    parts = (call.get("id"), function.get("name"), function.get("arguments")) if function else ()
    if not parts or not all(isinstance(part, str) for part in parts):
        raise InputError(
            f"a tool call of {what} must have an id, and a function with a name and arguments as "
            f"JSON text, got {call!r:.120}."
        )
    name, arguments = parts[1], parts[2]
    return {
        "id": parts[0],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _check_result(messages: list[dict[str, Any]], what: str) -> None:
    """The result of a tool stands behind the calls of an assistant, or behind another result."""
    before = [message for message in messages[:-1] if message["role"] != "tool"]
    calls = before[-1].get("tool_calls", []) if before else []
    wanted = messages[-1].get("tool_call_id")
    if not calls or (wanted is not None and wanted not in [call["id"] for call in calls]):
        which = f"the call {wanted!r}" if wanted is not None else "a call"
        raise InputError(
            f"{what} is the result of {which}, but the assistant before it made no such call; put "
            "it behind the message with tool_calls."
        )

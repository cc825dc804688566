"""One conversation in the terminal: a text in, an answer out, and what the model has read kept.

    line --take--> command, or question --> prompt --stream--> ids --parser--> answer, thoughts
                                              |                                      |
                                              '-- read only from where the cache ends'

A saved conversation is two files: FILE has messages and ids as JSON, FILE.cache what the model has
read. Another model, or one without the second file, reads the messages again.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlace.cli.generate import Terminal
from interlace.errors import CacheError, InputError
from interlace.generation import PromptCache, engine
from interlace.generation.interrupt import whole_call
from interlace.text.chat import ChatFormat, ChatParser, Conversation, Message, Piece

if TYPE_CHECKING:
    from interlace.generation import GenerationResult, SamplingOptions, TextStream
    from interlace.models import HybridLM

__all__ = ["Talk"]

_KIND, _VERSION = "interlace-chat", 1


class Talk:
    """A model, a conversation with it, and its cache.

    Args:
        lm: the model.
        chat: how its turns are written.
        options: how answers are drawn; the seed is that of the first turn, later ones add to it.
        system: messages before the first turn.
        tools: what the model may call.
        prefill_chunk: as for `interlace.stream`.
        quiet: tell nothing beside answers.
    """

    def __init__(
        self,
        lm: "HybridLM",
        chat: ChatFormat,
        options: "SamplingOptions",
        *,
        system: Sequence[Message] = (),
        tools: Sequence[dict[str, Any]] | None = None,
        prefill_chunk: int | None = None,
        quiet: bool = False,
    ) -> None:
        self._lm, self._chat, self._tools = lm, chat, tools
        self._options = options.replace(stop_tokens=[*options.stop_tokens, *chat.stop])
        self._system, self._chunk, self._quiet = system, prefill_chunk, quiet
        self.forget()

    def forget(self) -> None:
        """Begin again."""
        self.conversation = Conversation(self._chat, self._system, self._tools)
        self._cache = PromptCache.new(self._lm)
        self._results: list[Message] = []
        self._turn = 0

    def take(self, text: str) -> bool:
        """Do what a line says; whether it was done to its end, and not interrupted.

        Raises:
            InputError: no such command, or a question that does not fit.
            CacheError: a file that cannot be written.
        """
        name, _, rest = text.partition(" ")
        if text.startswith("//") or not text.startswith("/"):
            return self._ask(text[1:] if text.startswith("//") else text)
        rest = rest.strip()
        if name == "/forget":
            self.forget()
            self._tell("forgotten")
        elif name in ("/save", "/load"):
            if not rest:
                raise InputError(f"{name} must be followed by the name of a file.")
            (self._save if name == "/save" else self._load)(Path(rest))
        elif name == "/result":
            return self._result(rest)
        else:
            raise InputError(
                f"a command must be /save, /load, /forget, /result, /help or /quit, got {name!r}; "
                "begin a text that starts with / with //."
            )
        return True

    def _result(self, text: str) -> bool:
        """Take the result of one call; ask when all have theirs."""
        calls = self.conversation.open_calls
        if not calls:
            raise InputError(
                "/result must follow an answer that calls a tool, and the last one called none."
            )
        call = calls[len(self._results)]
        self._results.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        if len(self._results) < len(calls):
            return True
        results, self._results = self._results, []
        return self._ask(results)

    def _ask(self, question: str | Sequence[Message]) -> bool:
        prompt = self.conversation.ask(question)
        parser = self._chat.parser()
        options = self._options.replace(seed=self._options.seed + self._turn)
        stream = engine.stream(
            self._lm, prompt, options=options, prefill_chunk=self._chunk, cache=self._cache
        )
        self._results = []
        interrupted = _answer(stream, parser, _Screen(self._quiet))
        self.conversation.add(question, parser)
        self._turn += 1
        self._tell(_numbers(stream.result, interrupted, bool(parser.ids)))
        return not interrupted

    def _save(self, file: Path) -> None:
        cache = _cache_of(file)
        state = {
            "kind": _KIND,
            "version": _VERSION,
            "format": self._chat.name,
            "messages": self.conversation.messages,
            "ids": self.conversation.ids,
        }
        part = file.with_name(f".{file.name}.part")
        try:
            part.write_text(json.dumps(state, ensure_ascii=False, indent=1), encoding="utf-8")
            self._cache.save(cache)
            os.replace(part, file)  # noqa: PTH105
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(f"/save must name a file to write, got {file}: {reason}.") from None
        finally:
            part.unlink(missing_ok=True)
        self._tell(f"saved {_turns(self.conversation)}")

    def _load(self, file: Path) -> None:
        state = _read(file, self._chat)
        conversation = Conversation(self._chat, state["messages"], self._tools)
        try:
            cache = PromptCache.load(_cache_of(file), self._lm)
            conversation.ids = [int(token) for token in state["ids"]]
        except CacheError as error:
            cache = PromptCache.new(self._lm)
            self._tell(f"{str(error).rstrip('.')}; the messages are read again at the next turn")
        self.conversation, self._cache, self._results = conversation, cache, []
        self._turn = sum(message["role"] == "assistant" for message in conversation.messages)
        self._tell(f"loaded {_turns(conversation)}")

    def _tell(self, text: str) -> None:
        if not self._quiet:
            print(f"[{text}]", file=sys.stderr)


class _Screen:
    """Where the pieces of an answer go: answers to standard output, the rest beside it."""

    def __init__(self, quiet: bool) -> None:
        self._answer = Terminal(sys.stdout)
        self._beside = Terminal(sys.stderr)
        self._quiet = quiet
        self._channel: tuple[str, str | None] = ("", None)

    def show(self, pieces: Sequence[Piece]) -> None:
        """Print pieces; each thought and each call begins a line that says what it is."""
        for piece in pieces:
            is_answer = piece.channel == "answer"
            if self._quiet and not is_answer:
                continue
            if (piece.channel, piece.call) != self._channel:
                self._beside.end_line()
                self._channel = (piece.channel, piece.call)
                if not is_answer:
                    self._answer.end_line()
                    called = f" {piece.call}" if piece.call else ""
                    self._beside.echo(f"[{piece.channel}{called}] ")
            (self._answer if is_answer else self._beside).echo(piece.text)

    def end(self) -> None:
        """Leave both at the start of a line; an answer ends with one in a file too."""
        self._beside.end_line()
        self._answer.end_line(always=True)


def _answer(stream: "TextStream", parser: ChatParser, screen: _Screen) -> bool:
    """Read an answer and show it; whether it was interrupted. What was made is kept then."""
    seen = 0

    def read() -> None:
        nonlocal seen
        with whole_call():
            ids = stream.result.token_ids[seen:]
            seen += len(ids)
            screen.show(parser.feed(ids))

    interrupted = False
    try:
        for _ in stream:
            read()
            if parser.done:  # an end mark that was spelled does not stop the stream
                break
    except KeyboardInterrupt:
        interrupted = True
    stream.close()
    read()
    screen.show(parser.finish())
    screen.end()
    return interrupted


def _numbers(result: "GenerationResult", interrupted: bool, kept: bool) -> str:
    new = f"{result.new_tokens:,} new"
    if result.decode_tokens_per_second:
        new += f" at {result.decode_tokens_per_second:,.0f} tokens/s"
    parts = [
        f"prompt {result.prompt_tokens:,} tokens, {result.reused_tokens:,} of them reused",
        new,
    ]
    if interrupted:
        parts.append("interrupted, kept")
    elif result.finish_reason == "length":
        parts.append("cut off at --max-tokens")
    if not kept:
        parts[2:] = ["no answer, so the question is not kept"]
    return "; ".join(parts)


def _turns(conversation: Conversation) -> str:
    count = len(conversation.messages)
    return f"{count} message{'' if count == 1 else 's'}"


def _cache_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.cache")


def _read(file: Path, chat: ChatFormat) -> dict[str, Any]:
    try:
        state = json.loads(file.read_bytes())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"/load must name a readable file, got {file}: {reason}.") from None
    except ValueError:
        state = None
    if not isinstance(state, dict) or state.get("kind") != _KIND:
        raise InputError(f"/load must name a file that /save wrote, got {file}.")
    if state.get("version") != _VERSION:
        raise InputError(
            f"{file} must have version {_VERSION} of its form, got {state.get('version')!r}; a "
            "newer interlace wrote it."
        )
    if state.get("format") != chat.name:
        raise InputError(
            f"{file} must be of the chat format {chat.name}, got {state.get('format')!r}; start "
            "with that --format."
        )
    return state

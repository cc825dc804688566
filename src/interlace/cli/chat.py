"""`interlace chat [MODEL]`: answers on standard output, thoughts and numbers on standard error.

In a terminal it asks for lines; from a pipe it reads them the same way, each a question.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlace.cli import INTERRUPTED
from interlace.cli.generate import DTYPES, MODEL_HELP
from interlace.cli.models import add_experts
from interlace.cli.sampling import add_sampling, sampling_of
from interlace.errors import InputError, InterlaceError

if TYPE_CHECKING:
    from interlace.cli.models import Model
    from interlace.cli.talk import Talk
    from interlace.text.chat import ChatFormat

__all__ = ["add"]

HELP = """\
  a line that ends in \\   goes on in the next one
  \"\"\"                    on a line of its own begins and ends a text of several lines
  /save FILE             keep the conversation in FILE, and what the model has read in FILE.cache
  /load FILE             go on with it
  /forget                begin again
  /result TEXT           the result of the next tool that the model has called
  //                     a line that begins with one /
  /quit                  end; so does Ctrl-D, while Ctrl-C ends an answer and keeps it"""

_BLOCK = '"""'


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "chat",
        parents=[common],
        help="talk to a model, turn by turn",
        description=(
            "Talk to a model. What it has read is kept, so that a turn reads only what is new. "
            "Answers go to standard output, thoughts, calls of tools and numbers to standard error."
        ),
        epilog="in the chat:\n" + HELP + "\n\nexample: interlace chat path/to/kimi --system 'Be "
        "brief.'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", default="default", help=MODEL_HELP)
    parser.add_argument("--system", metavar="TEXT", help="said before the first turn")
    parser.add_argument(
        "--format", metavar="NAME", help="kimi-linear, kimi-k3 or plain; by default as the "
        "tokenizer has marks for"
    )  # fmt: skip
    parser.add_argument("--no-thinking", action="store_true", help="answer at once (kimi-k3)")
    parser.add_argument("--effort", metavar="NAME", help="low, high or max thinking (kimi-k3)")
    parser.add_argument(
        "--tools", metavar="FILE", type=Path, help="JSON list of what the model may call"
    )
    add_sampling(parser, max_tokens=1024, logprobs=False)
    parser.add_argument("--dtype", choices=DTYPES, help="of the weights; as stored by default")
    add_experts(parser)
    parser.add_argument("--threads", metavar="N", type=int, help="CPU threads of the products")
    parser.add_argument(
        "--prefill-chunk", metavar="N", type=int, help="prompt tokens per call (512, or what fits)"
    )
    parser.set_defaults(run=run, json=False, logprobs=None)


def run(args: argparse.Namespace) -> int:
    """Run the command: every check first, then the weights, then turn by turn."""
    from interlace.cli.models import experts_of, find
    from interlace.cli.talk import Talk
    from interlace.generation import context, memory, streams
    from interlace.text.chat import Conversation

    if args.threads is not None and args.threads < 1:
        raise InputError(f"--threads must be at least 1, got {args.threads}.")
    model = find(args.model)
    experts = experts_of(args, model)
    options = sampling_of(args)
    options.check_for(model.config)
    streams.check_sizes(prefill_chunk=args.prefill_chunk)
    chat = _format(args, model)
    system = [{"role": "system", "content": args.system}] if args.system is not None else []
    tools = None if args.tools is None else _tools(args.tools)
    first = Conversation(chat, system, tools)
    dtype = args.dtype or model.config.dtype
    capacity = len(first.ids) + args.max_tokens
    limit = memory.available()
    chunk = args.prefill_chunk or context.choose_chunk(model.config, capacity, dtype, limit)
    weights = model.weight_bytes(dtype, experts)
    context.require_context(model.config, capacity, chunk, dtype, limit, weights)
    if args.threads is not None:
        import torch

        torch.set_num_threads(args.threads)
    lm = model.load(dtype, args.seed, experts)
    talk = Talk(
        lm,
        chat,
        options,
        system=system,
        tools=tools,
        prefill_chunk=args.prefill_chunk,
        quiet=args.quiet,
    )
    asks = sys.stdin is not None and sys.stdin.isatty()
    if asks and not args.quiet:
        print(
            f"{model.name}, {dtype}, turns of {chat.name}; /help lists what can be typed.",
            file=sys.stderr,
        )
    return _turns(talk, asks)


def _format(args: argparse.Namespace, model: "Model") -> "ChatFormat":
    """The format of the model's turns, before its weights are read."""
    from interlace.text import ByteTokenizer, load_tokenizer
    from interlace.text.chat import FORMATS, chat_format

    config = model.config
    tokenizer = None if model.folder is None else load_tokenizer(model.folder)
    if tokenizer is None and config.vocab_size >= 256 and model.folder is None:
        tokenizer = ByteTokenizer(config.vocab_size, config.bos_token_id, config.eos_token_id)
    if tokenizer is None:
        raise InputError(
            f"chat needs a model with a tokenizer, and {model.name} has none that can be read; put "
            "its tiktoken.model or tokenizer.json into its folder."
        )
    options: dict[str, Any] = {"thinking": False} if args.no_thinking else {}
    if args.effort is not None:
        options["effort"] = args.effort
    if args.format is None and not any(
        kind.fits(tokenizer) for kind in FORMATS.values() if hasattr(kind, "fits")
    ):
        raise InputError(
            f"{model.name} has no chat format, since its tokenizer has no marks of turns; continue "
            "a text with: interlace generate, or write turns as plain text with --format plain, "
            "which a model understands only if it was trained on such text."
        )
    return chat_format(tokenizer, args.format, **options)


def _tools(file: Path) -> list[dict[str, Any]]:
    from interlace.text.chat import check_tools

    try:
        return check_tools(json.loads(file.read_bytes()))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"--tools must be a readable file, got {file}: {reason}.") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--tools must be a file of JSON, got {file} ({error}).") from None


def _turns(talk: "Talk", asks: bool) -> int:
    """Take lines until there are none; the exit status.

    A mistake in a line is told and forgotten in a terminal, and ends the command in a pipe.
    """
    lines = _lines(asks)
    while True:
        try:
            text = next(lines)
        except (StopIteration, EOFError):
            return 0
        try:
            if text.strip() == "/quit":
                return 0
            if text.strip() == "/help":
                print(HELP, file=sys.stderr)
            elif text.strip() and not talk.take(text) and not asks:
                return INTERRUPTED
        except InterlaceError as error:
            if not asks:
                raise
            print(f"interlace: {' '.join(str(error).split()).rstrip('.')}.", file=sys.stderr)


def _lines(asks: bool) -> Iterator[str]:
    """Texts as they are typed: lines, joined where they say so."""
    if asks:
        with contextlib.suppress(ImportError):  # not on every system; it gives lines a history
            import readline  # noqa: F401
    while True:
        try:
            line = _line("> " if asks else "")
            if line.strip() == _BLOCK:
                block = []
                while (line := _line(". " if asks else "")).strip() != _BLOCK:
                    block.append(line)
                line = "\n".join(block)
            else:
                while line.endswith("\\"):
                    line = line[:-1] + "\n" + _line(". " if asks else "")
        except KeyboardInterrupt:
            if not asks:
                raise
            print(file=sys.stderr)  # what was typed is dropped
            continue
        yield line


def _line(prompt: str) -> str:
    if prompt:
        return input(prompt)
    data = b"" if sys.stdin is None else sys.stdin.buffer.readline()
    if not data:
        raise EOFError
    try:
        return data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"standard input must be valid UTF-8, got the byte 0x{data[error.start]:02X} at offset "
            f"{error.start} of a line; convert it first."
        ) from None

"""Command line: `interlace COMMAND`, one file per command.

A command's module has `add(commands, common)`, which declares its options and sets `run`, and loads
anything heavy inside `run`, so that help and mistakes in the options answer at once.

Exit status: 0 done, 1 ran and failed, 2 bad usage or bad input, 130 interrupted. An error is one
sentence on standard error, and standard output stays empty.
"""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import interlace
from interlace.errors import InputError, InterlaceError, NonFiniteError

__all__ = ["main"]

COMMANDS = ("generate", "chat", "check", "inspect", "init", "plan", "bench", "train")
"""Modules of this room that add a command, in the order of `interlace --help`."""

INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are one sentence, like those of the library."""

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into the library's error."""
        raise InputError(f"{message.rstrip('.')}; see '{self.prog} --help'.")


def build_parser() -> Parser:
    """The parser of all commands."""
    parser = Parser(
        prog="interlace",
        description="Train and run models that interlace linear and global attention.",
        epilog="example: interlace generate --prompt 'def main():' --max-tokens 200",
    )
    parser.add_argument("--version", action="version", version=f"interlace {interlace.__version__}")
    common = Parser(add_help=False)
    loudness = common.add_mutually_exclusive_group()
    loudness.add_argument("-v", "--verbose", action="store_true", help="say what is being done")
    loudness.add_argument("--quiet", action="store_true", help="only the result and errors")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        import_module(f"interlace.cli.{name}").add(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: the arguments; those of the process by default.
    """
    # a stream that the caller closed is None, and print(file=None) would write to the other one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    try:
        status = _run(argv)
        sys.stdout.flush()
        return status
    except InterlaceError as error:
        print(f"interlace: {' '.join(str(error).split()).rstrip('.')}.", file=sys.stderr)
        return 1 if isinstance(error, NonFiniteError) else 2
    except KeyboardInterrupt:
        print("\ninterlace: interrupted.", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone; what Python still flushes at its end must not complain
        _drop_output()
        return 1
    except OSError as error:
        # a full disk, a name too long, a folder without permission: the system's words say which
        name = "" if error.filename is None else f" {error.filename!r}"
        print(f"interlace: the system refused{name}: {error.strerror or error}.", file=sys.stderr)
        _drop_output()
        return 2


def _drop_output() -> None:
    """Let what Python still flushes at its end go nowhere."""
    with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor, as in a test
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as stop:  # --help and --version have been printed
        return stop.code if isinstance(stop.code, int) else 0
    _log(args)
    status: int = args.run(args)
    return status


def _log(args: argparse.Namespace) -> None:
    logger = logging.getLogger("interlace")
    logger.setLevel(logging.INFO if args.verbose else logging.WARNING)
    if not any(isinstance(handler, _StandardError) for handler in logger.handlers):
        handler = _StandardError()
        handler.setFormatter(logging.Formatter("interlace: %(message)s"))
        logger.addHandler(handler)


class _StandardError(logging.Handler):
    """Writes to whatever standard error is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)

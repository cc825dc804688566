"""The prompt of a command line: an option, a file, or standard input; always valid UTF-8."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from interlace.errors import InputError

__all__ = ["read_prompt"]


def read_prompt(
    text: str | None,
    file: Path | None,
    first_bytes: int | None,
    check_size: Callable[[int], None],
) -> bytes:
    """The bytes of the prompt.

    Args:
        text: given literally.
        file: to read; with neither, standard input is read to its end.
        first_bytes: only so many; a character that this would cut is left out.
        check_size: called with the size of a file before it is read; may refuse it.

    Raises:
        InputError: nothing given, an unreadable file, an empty prompt, or bytes that are no UTF-8.
    """
    if first_bytes is not None and first_bytes < 1:
        raise InputError(f"--prompt-bytes must be at least 1, got {first_bytes}.")
    if text is not None:
        # what the shell gave byte for byte, even where it is no UTF-8
        data, source = os.fsencode(text), "--prompt"
    elif file is not None:
        data, source = _read_file(file, first_bytes, check_size), str(file)
    else:
        if sys.stdin is None or sys.stdin.isatty():
            raise InputError(
                "a prompt is needed: give --prompt TEXT or --prompt-file FILE, or pipe text in."
            )
        data, source = sys.stdin.buffer.read(first_bytes or -1), "standard input"
    cut = first_bytes is not None and len(data) >= first_bytes
    data = data[:first_bytes]
    if not data:
        raise InputError(
            f"the prompt must not be empty, but {source} is; give at least one character."
        )
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        if not (cut and error.reason == "unexpected end of data"):
            raise InputError(
                f"the prompt must be valid UTF-8, but {source} has the byte "
                f"0x{data[error.start]:02X} at offset {error.start}; convert it first."
            ) from None
        data = data[: error.start]
        if not data:
            raise InputError(
                f"--prompt-bytes must hold at least one whole character, got {first_bytes}."
            ) from None
    return data


def _read_file(path: Path, first_bytes: int | None, check_size: Callable[[int], None]) -> bytes:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            check_size(size if first_bytes is None else min(size, first_bytes))
            return file.read(-1 if first_bytes is None else first_bytes)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(f"--prompt-file must be a readable file, got {path}: {reason}.") from None

"""Which tokenizer a checkpoint folder has, from the names of its files.

    tiktoken.model    ranked merges, as published          package tiktoken
    tokenizer.json    says itself how it works             package tokenizers
    neither           bytes, where the vocabulary is one of bytes and a few marks; otherwise none

`tokenizer_config.json` names marks and the start and end of a document; `config.json` and
`generation_config.json` say which ids end a generation, and an answer stops at any of them. No code
of the folder is run, whatever `auto_map` says.
"""

import json
from pathlib import Path
from typing import Any

from interlace.errors import CheckpointError
from interlace.text.bytes import ByteTokenizer
from interlace.text.json_tokenizer import JSON_FILE, JsonTokenizer
from interlace.text.rank_tokenizer import RankTokenizer
from interlace.text.ranks import CONFIG_FILE, RANK_FILE
from interlace.text.tokenizer import Tokenizer

__all__ = ["TOKENIZER_FILES", "load_tokenizer"]

TOKENIZER_FILES = (RANK_FILE, JSON_FILE, CONFIG_FILE, "generation_config.json")
"""The files that `load_tokenizer` reads, besides `config.json`."""

# a vocabulary of bytes and a few marks; larger ones are of merged pieces
_BYTE_VOCABULARY = range(256, 4097)
# a kind of file that is not read: its model takes ids
_UNREAD = "tokenizer.model"


def load_tokenizer(folder: str | Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint folder, or None where it has none that can be read.

    Raises:
        MissingExtra: the package for the folder's tokenizer is not installed.
        CheckpointError: a broken file, or files that do not belong together.
    """
    root = Path(folder)
    model = _json(root / "config.json")
    model = model.get("text_config") or model
    named = _json(root / CONFIG_FILE)
    size = model.get("vocab_size")
    bos = _name(named.get("bos_token"))
    eos = _name(named.get("eos_token"))
    stop = [
        *_ids(model.get("eos_token_id"), size, root / "config.json"),
        *_ids(
            _json(root / TOKENIZER_FILES[3]).get("eos_token_id"), size, root / TOKENIZER_FILES[3]
        ),
    ]
    marks: dict[str, Any] = {
        "bos": model.get("bos_token_id") if bos is None else bos,
        "eos": stop[0] if eos is None and stop else eos,
        "stop": stop,
    }
    if (root / RANK_FILE).is_file():
        names = named.get("added_tokens_decoder")
        return RankTokenizer(root, vocab_size=size, names=names, **marks)
    if (root / JSON_FILE).is_file():
        add_bos = named.get("add_bos_token") is True
        return JsonTokenizer(root, vocab_size=size, add_bos=add_bos, **marks)
    if (root / _UNREAD).exists() or size is None or size not in _BYTE_VOCABULARY:
        return None
    return ByteTokenizer(size, model.get("bos_token_id"), stop[0] if stop else None)


def _json(file: Path) -> dict[str, Any]:
    """The object in a file; empty where there is no file."""
    if not file.is_file():
        return {}
    try:
        parsed = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} is not valid JSON ({error}); fetch it again.") from None
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{file} must hold a JSON object; fetch it again.")
    return parsed


def _name(value: Any) -> str | None:
    """A mark is given by its text, or by an object that has it as `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _ids(value: Any, size: Any, file: Path) -> list[int]:
    """One id, several, or none."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for token in ids:
        if type(token) is not int or token < 0 or (isinstance(size, int) and token >= size):
            raise CheckpointError(
                f"eos_token_id of {file} must be ids of the model's vocabulary, got {token!r}; "
                "correct it."
            )
    return list(ids)

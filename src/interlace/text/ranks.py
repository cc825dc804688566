"""`tiktoken.model`: one token per line, its bytes in base64 and its rank.

    YQ== 97        the byte "a"
    YWI= 300       "ab", merged from two tokens of lower rank

The rank is both the id and the order of merging. Reading needs no other package. Writing is here
too, with ranks drawn at random, for checkpoints that have random weights anyway.
"""

import base64
import binascii
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interlace.errors import CheckpointError, InputError

__all__ = [
    "CONFIG_FILE",
    "K3_MARKS",
    "KIMI_MARKS",
    "NUM_RESERVED",
    "RANK_FILE",
    "read_ranks",
    "write_tokenizer",
]

RANK_FILE = "tiktoken.model"
CONFIG_FILE = "tokenizer_config.json"

NUM_RESERVED = 256
"""Ids behind the ranks that are kept for marks."""

# format constants of the published tokenizer: place behind the ranks, and name
KIMI_MARKS = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|im_end|>",
    3: "<|im_user|>",
    4: "<|im_assistant|>",
    6: "<|start_header_id|>",
    7: "<|end_header_id|>",
    9: "[EOT]",
    10: "<|im_system|>",
    11: "<|tool_calls_section_begin|>",
    12: "<|tool_calls_section_end|>",
    13: "<|tool_call_begin|>",
    14: "<|tool_call_argument_begin|>",
    15: "<|tool_call_end|>",
    17: "<|im_middle|>",
    254: "[UNK]",
    255: "[PAD]",
}
"""Marks of Kimi Linear, by their place behind the ranks."""

K3_MARKS = {
    0: "[BOS]",
    1: "[EOS]",
    2: "<|end_of_msg|>",
    3: "<|open|>",
    4: "<|close|>",
    5: "<|sep|>",
    6: "[start_header_id]",
    7: "[end_header_id]",
    9: "[EOT]",
    18: "<|media_begin|>",
    19: "<|media_content|>",
    20: "<|media_end|>",
    21: "<|media_pad|>",
    65: "<osagent_mode>",
    254: "[UNK]",
    255: "[PAD]",
}
"""Marks of Kimi K3, by their place behind the ranks."""

_NUM_BYTES = 256
_LONGEST = 12
_TURN_PLACES, _END_PLACES = 64, 254


def read_ranks(path: str | Path) -> dict[bytes, int]:
    """The tokens of a `tiktoken.model` and their ranks.

    Raises:
        CheckpointError: an unreadable file, or a line that is not one token and its rank: the line
            is named by its number. Also tokens or ranks given twice, ranks that leave a hole, and a
            vocabulary without all 256 single bytes.
    """
    file = Path(path)
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read ({error.strerror}); check it.") from None
    ranks: dict[bytes, int] = {}
    seen: set[int] = set()
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        token, rank = _entry(file, number, line)
        if token in ranks or rank in seen:
            what = f"the token {token!r}" if token in ranks else f"the rank {rank}"
            raise CheckpointError(
                f"{file}, line {number}, gives {what} a second time; fetch the file again."
            )
        ranks[token] = rank
        seen.add(rank)
    if seen and max(seen) >= len(ranks):
        hole = next(rank for rank in range(len(ranks)) if rank not in seen)
        raise CheckpointError(
            f"{file} must have every rank from 0 to {max(seen)}, but lacks {hole}; fetch it again."
        )
    missing = [byte for byte in range(_NUM_BYTES) if bytes([byte]) not in ranks]
    if missing:
        raise CheckpointError(
            f"{file} must have every single byte as a token, but lacks {len(missing)} of 256, the "
            f"first being 0x{missing[0]:02X}; fetch it again."
        )
    return ranks


def _entry(file: Path, number: int, line: bytes) -> tuple[bytes, int]:
    parts = line.split()
    try:
        if len(parts) != 2 or not parts[1].isdigit():
            raise ValueError
        token = base64.b64decode(parts[0], validate=True)
        if not token:
            raise ValueError
        return token, int(parts[1])
    except (ValueError, binascii.Error):
        raise CheckpointError(
            f"{file}, line {number}, must be a token in base64, a space and its rank, got "
            f"{line[:60].decode(errors='replace')!r}; fetch the file again."
        ) from None


def write_tokenizer(
    folder: str | Path,
    vocab_size: int,
    *,
    seed: int = 0,
    marks: Mapping[int, str] = KIMI_MARKS,
) -> dict[str, int]:
    """Write a `tiktoken.model` with random merges and its `tokenizer_config.json`.

    The last 256 ids are reserved, with the marks in their published places; a vocabulary below 512
    reserves fewer, leaves out marks in places that it has not, and puts [UNK] and [PAD] at its end.

    Args:
        folder: an existing folder; files of these names in it are replaced.
        vocab_size: ids of the model, at least 276 (Kimi Linear) or 280 (K3).
        seed: of the merges.
        marks: `KIMI_MARKS` or `K3_MARKS`.

    Returns:
        The marks by name.

    Raises:
        InputError: a vocabulary without room for the bytes and the marks that a turn needs.
    """
    # those that turns are written with lie below 64; two more stand at the end
    least = _NUM_BYTES + max(place for place in marks if place < _TURN_PLACES) + 3
    if vocab_size < least:
        raise InputError(
            f"a tokenizer with marks needs a vocabulary of at least {least} ids, got "
            f"{vocab_size}; leave it out and let the bytes be the tokens."
        )
    reserved = min(NUM_RESERVED, vocab_size - _NUM_BYTES)
    num_ranks = vocab_size - reserved
    named = {
        name: num_ranks + place - (NUM_RESERVED - reserved if place >= _END_PLACES else 0)
        for place, name in marks.items()
        if place >= _END_PLACES or place < reserved - 2
    }
    lines = (
        base64.b64encode(token) + b" %d\n" % rank
        for rank, token in enumerate(_random_tokens(num_ranks, seed))
    )
    config = {
        "added_tokens_decoder": {
            str(token): {"content": name, "special": True} for name, token in named.items()
        },
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "unk_token": "[UNK]",
        "pad_token": "[PAD]",
    }
    _write(Path(folder) / RANK_FILE, b"".join(lines))
    _write(Path(folder) / CONFIG_FILE, json.dumps(config, indent=2).encode() + b"\n")
    return named


def _random_tokens(count: int, seed: int) -> list[bytes]:
    """The bytes, then tokens that are each two earlier ones: small letters, often after a space."""
    generator = random.Random(seed)
    tokens = [bytes([byte]) for byte in range(_NUM_BYTES)]
    known = set(tokens)
    # the commonest letters first, and early tokens drawn more often: then merges meet in a text
    inner = [bytes([byte]) for byte in b"etaoinshrdlucmfwypvbgkjqxz"]
    starts = [b" ", *inner]

    def draw(tokens: list[bytes]) -> bytes:
        return tokens[int(len(tokens) * generator.random() ** 3)]

    while len(tokens) < count:
        token = draw(starts) + draw(inner)
        if token in known or len(token) > _LONGEST:
            continue
        known.add(token)
        tokens.append(token)
        starts.append(token)
        if not token.startswith(b" "):
            inner.append(token)
    return tokens


def _write(file: Path, data: bytes) -> None:
    part = file.with_name(f".{file.name}.part")
    part.write_bytes(data)
    part.replace(file)


def named_marks(entries: Any, first: int, end: int, source: Path) -> dict[str, int]:
    """The marks of an `added_tokens_decoder`, by name, checked to lie in first..end-1.

    Raises:
        CheckpointError: an entry that is none, or an id out of range or name given twice.
    """
    marks: dict[str, int] = {}
    for key, entry in (entries or {}).items():
        name = entry.get("content") if isinstance(entry, dict) else None
        if not key.isdigit() or not isinstance(name, str) or not name:
            raise CheckpointError(
                f"{source} must give added_tokens_decoder as ids with a content, got "
                f"{key!r:.40}: {entry!r:.80}; fetch it again."
            )
        if not first <= int(key) < end:
            raise CheckpointError(
                f"{source} names the id {key} {name!r}, but marks must lie in {first}..{end - 1}, "
                "behind the ranks and inside the model's vocabulary; the files do not belong "
                "together."
            )
        if name in marks:
            raise CheckpointError(f"{source} gives the name {name!r} to two ids; fetch it again.")
        marks[name] = int(key)
    return marks

"""Logits of llama.cpp after every token, in float32 throughout.

    python -m interlace.bench.peers.llama_logits FILE IDS OUT PROMPT

FILE is a GGUF, IDS a .npy of tokens, OUT the .npy that is written, `[tokens, vocab]`. The first
PROMPT tokens are one call (its delta rule in chunks), the rest a call each (its recurrence). The
cache is float32, flash attention off. It runs in a process of its own, because the library ends the
process when an assertion of its graph does not hold.
"""

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interlace.errors import InputError

__all__ = ["llama_logits"]

_FLOAT32 = 0  # number of the type in ggml


def llama_logits(file: Path, ids: Sequence[int], prompt: int) -> Tensor:
    """Logits `[tokens, vocab]` of the GGUF `file`, from a process of its own.

    Args:
        file: what llama.cpp's converter wrote.
        ids: tokens of one sequence.
        prompt: how many of them are read in the first call.

    Raises:
        InputError: the library refused or ended; the message ends with its last words.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "ids.npy"), Path(folder, "logits.npy")
        np.save(given, np.asarray(ids, np.int32))
        command = [sys.executable, "-m", "interlace.bench.peers.llama_logits"]
        command += [str(file), str(given), str(out), str(prompt)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not out.is_file():
            raise InputError(f"llama.cpp must run the model, it said: {last_words(done.stderr)}.")
        return torch.from_numpy(np.load(out))


def last_words(said: str) -> str:
    """The line of what a failed process said that tells most: its last error or assertion."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    marks = ("error", "GGML_ASSERT", "missing", "wrong shape")
    telling = [line for line in lines if any(mark in line for mark in marks)]
    words = (telling or lines or ["nothing"])[-1].split()
    # of a source file only its name: where it was compiled tells nothing
    return " ".join(word if ":" not in word else word.rpartition("/")[2] for word in words).rstrip(
        "."
    )


def main(file: str, ids: str, out: str, prompt: str) -> None:
    """Write the logits of the tokens in `ids` to `out`."""
    lib: Any = import_module("llama_cpp")
    lib.llama_backend_init()
    settings = lib.llama_model_default_params()
    settings.n_gpu_layers = 0
    model = lib.llama_model_load_from_file(file.encode(), settings)
    if not model:
        sys.exit(1)
    tokens = np.load(ids).tolist()
    context = _context(lib, model, len(tokens))
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    start, first = 0, int(prompt)
    blocks: list[Tensor] = []
    for count in [first] + [1] * (len(tokens) - first):
        blocks.append(_decode(lib, context, tokens[start : start + count], start, vocab))
        start += count
    np.save(out, torch.cat(blocks).numpy())


def _context(lib: Any, model: Any, tokens: int) -> Any:
    params = lib.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = -(-tokens // 256) * 256
    params.n_seq_max = params.n_threads = params.n_threads_batch = 1
    params.flash_attn_type = 0
    params.type_k = params.type_v = _FLOAT32
    context = lib.llama_init_from_model(model, params)
    if not context:
        sys.exit(1)
    return context


def _decode(lib: Any, context: Any, ids: Sequence[int], start: int, vocab: int) -> Tensor:
    batch = lib.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i] = token, start + i
        batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 1
    status = lib.llama_decode(context, batch)
    lib.llama_batch_free(batch)
    if status:
        sys.exit(f"error: llama_decode answered {status}")
    lib.llama_synchronize(context)
    rows = [lib.llama_get_logits_ith(context, i) for i in range(len(ids))]
    size = 4 * vocab
    return torch.stack(
        [
            torch.frombuffer(bytearray(ctypes.string_at(row, size)), dtype=torch.float32)
            for row in rows
        ]
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

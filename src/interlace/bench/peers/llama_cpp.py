"""llama.cpp through llama-cpp-python: the checkpoint converted, its state filled with our latents.

Two contexts hold the same state, one with flash attention and one without; the faster one is timed.
The cache is float16, the weights bf16. What is called are the plain functions of its C interface.
"""

import ctypes
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interlace.bench.filled import WARM_TOKENS, random_latents
from interlace.bench.peers.llama_state import deepen
from interlace.checkpoints.readers import llama_cpp_lacks
from interlace.config import HybridConfig
from interlace.errors import InputError

__all__ = ["FORMS", "Loaded", "convert", "missing", "refuses"]

FORMS = {"flash attention": 1, "no flash attention": 0}
"""Name and number of each setting of flash attention."""

BATCH = 512
"""Prompt tokens of one call."""

CONVERTER = "convert_hf_to_gguf.py"


def missing(source: Path | None) -> str | None:
    """What to install or to name, or None."""
    if find_spec("llama_cpp") is None:
        return (
            "--against llama.cpp needs a native build of llama-cpp-python: pip install "
            "--no-binary llama-cpp-python llama-cpp-python==0.3.36, and --llama-source with the "
            "folder vendor/llama.cpp of its source archive."
        )
    if source is None or not (source / CONVERTER).is_file():
        return (
            f"--llama-source must be a folder of llama.cpp's sources with {CONVERTER}, got "
            f"{source}; the source archive of llama-cpp-python has it in vendor/llama.cpp."
        )
    return None


def refuses(config: HybridConfig) -> str | None:
    """Why this adapter cannot run such a model, or None."""
    lacks = llama_cpp_lacks(config)
    return None if lacks is None else f"it was tried and does not run models with {lacks}"


def convert(source: Path, folder: Path, file: Path, kind: str = "bf16") -> None:
    """Write a checkpoint as GGUF.

    Raises:
        InputError: the converter failed; the message ends with its last line.
    """
    module = "interlace.bench.peers.convert_gguf"
    command = [sys.executable, "-m", module, str(source), str(folder), str(file), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not file.is_file():
        last = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        raise InputError(f"llama.cpp's converter must accept the model, it said: {last}.")


class Loaded:
    """A checkpoint in llama.cpp.

    Args:
        folder: in the published layout.
        threads: of its products.
        source: a folder of llama.cpp's sources.
    """

    def __init__(self, folder: Path, threads: int, source: Path | None) -> None:
        assert source is not None, "the caller has asked `missing`"
        self.config = HybridConfig.from_pretrained(folder)
        self.threads = threads
        self.skipped: dict[str, str] = {}
        self.lib: Any = import_module("llama_cpp")
        self.version = str(self.lib.__version__)
        # kept as an attribute: the library holds a pointer to it
        self._silent = self.lib.llama_log_callback(lambda *_: None)
        self.lib.llama_log_set(self._silent, ctypes.c_void_p(0))
        self.lib.llama_backend_init()
        # the file is mapped, so it stays until `close`
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "model.gguf"
        convert(source, folder, file)
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = self.lib.llama_model_load_from_file(str(file).encode(), params)
        if not self.model:
            raise InputError(f"llama.cpp {self.version} must load what its converter wrote.")
        self.contexts: dict[str, Any] = {}

    def fill(self, tokens: int, reserve: int) -> None:
        """A context of each form that has read the warm tokens, then holds random latents."""
        self._free_contexts()
        for form in FORMS:
            context = self.contexts[form] = self._context(form, max(tokens, 8) + reserve)
            self._decode(context, [t % self.config.vocab_size for t in WARM_TOKENS])
            if tokens:
                self._set(context, self._deepened(self._get(context), tokens))

    def step(self, token: int) -> Tensor:
        """Logits `[vocab]`, float32, after one more token, in the first form."""
        context = self.contexts[next(iter(FORMS))]
        self._decode(context, [token])
        logits = self.lib.llama_get_logits_ith(context, -1)
        return torch.tensor(logits[: self.config.vocab_size])

    def steps(self) -> Mapping[str, Callable[[], object]]:
        """One decoding step in each form."""
        return {form: partial(self._decode, self.contexts[form], [5]) for form in FORMS}

    def prompts(self, tokens: int) -> Mapping[str, Callable[[], object]]:
        """A prompt in calls of 512 tokens, logits of the last token only, in each form."""
        self._free_contexts()
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.config.vocab_size, (tokens,), generator=generator).tolist()
        self.contexts = {form: self._context(form, tokens) for form in FORMS}

        def read(context: Any) -> None:
            self.lib.llama_memory_clear(self.lib.llama_get_memory(context), True)
            for start in range(0, tokens, BATCH):
                self._decode(context, ids[start : start + BATCH])

        return {form: partial(read, context) for form, context in self.contexts.items()}

    def close(self) -> None:
        """Give the memory back."""
        self._free_contexts()
        self.lib.llama_model_free(self.model)
        self._folder.cleanup()

    def _context(self, form: str, tokens: int) -> Any:
        params = self.lib.llama_context_default_params()
        params.n_ctx = -(-tokens // 256) * 256
        params.n_batch = params.n_ubatch = BATCH
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = self.threads
        params.flash_attn_type = FORMS[form]
        context = self.lib.llama_init_from_model(self.model, params)
        if not context:
            raise InputError(
                f"llama.cpp must make a context of {params.n_ctx:,} tokens, it cannot."
            )
        return context

    def _free_contexts(self) -> None:
        for context in self.contexts.values():
            self.lib.llama_free(context)
        self.contexts = {}

    def _decode(self, context: Any, ids: Sequence[int]) -> None:
        array = (self.lib.llama_token * len(ids))(*ids)
        status = self.lib.llama_decode(context, self.lib.llama_batch_get_one(array, len(ids)))
        if status:
            raise InputError(f"llama.cpp must take {len(ids)} tokens, it answered {status}.")
        # the call may return before the numbers are there
        self.lib.llama_synchronize(context)

    def _get(self, context: Any) -> bytes:
        size = self.lib.llama_state_seq_get_size(context, 0)
        buffer = (ctypes.c_uint8 * size)()
        written = self.lib.llama_state_seq_get_data(context, buffer, size, 0)
        return bytes(buffer)[:written]

    def _set(self, context: Any, state: bytes) -> None:
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if not self.lib.llama_state_seq_set_data(context, buffer, len(state), 0):
            raise InputError(f"llama.cpp {self.version} must take a state of its own form back.")

    def _deepened(self, state: bytes, tokens: int) -> bytes:
        config = self.config
        layers = [i for i in range(config.num_hidden_layers) if config.is_global(i)]

        def rows(ordinal: int) -> Iterator[Tensor]:
            return random_latents(config, layers[ordinal], tokens, torch.bfloat16)

        return deepen(state, tokens, len(layers), config.latent_dim, rows)

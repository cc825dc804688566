"""transformers: keeps the latent as we do, and rebuilds keys and values of the whole past per step.

Its cache has one head; the latent stands where keys do, the shared key where values do.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from interlace.bench.filled import WARM_TOKENS, random_latents
from interlace.config import HybridConfig
from interlace.config.sizes import describe_bytes, expanded_cache_bytes
from interlace.generation import memory

__all__ = ["FORMS", "Loaded", "missing", "refuses", "step_bytes"]

FORMS = ("eager", "sdpa")

# times the expanded keys and values of one layer, measured at 65,536 tokens and rounded up
_TIMES_EXPANDED = {"eager": 3, "sdpa": 6}


def missing(source: Path | None = None) -> str | None:
    """What to install, or None; transformers needs no sources."""
    if find_spec("transformers") is None:
        return "--against transformers needs it: pip install 'transformers>=5.24'."
    return None


def refuses(config: HybridConfig) -> str | None:
    """Why transformers cannot run such a model, or None."""
    if config.model_type != "kimi_linear":
        return f"transformers has kimi_linear, and no {config.model_type}"
    return None


def step_bytes(config: HybridConfig, tokens: int, form: str) -> int:
    """Bytes that one decoding step takes over weights and cache, roughly and from above."""
    layers = max(1, config.num_global_layers)
    return _TIMES_EXPANDED[form] * expanded_cache_bytes(config, 1, tokens) // layers


class Loaded:
    """A checkpoint in transformers.

    Args:
        folder: in the published layout.
        threads: of its products; those of torch, so nothing is to be done.
        source: not needed.
        dtype: of weights and cache.
    """

    def __init__(
        self,
        folder: Path,
        threads: int = 0,
        source: Path | None = None,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        from transformers import KimiLinearForCausalLM, __version__
        from transformers.utils.logging import disable_progress_bar, set_verbosity_error

        self.version = str(__version__)
        self.config = HybridConfig.from_pretrained(folder)
        self.dtype = dtype
        # its notes on missing GPU kernels and its bars say nothing about a CPU
        set_verbosity_error()
        disable_progress_bar()
        with warnings.catch_warnings():
            # the published config says rope_scaling: null, and so do we
            warnings.filterwarnings("ignore", ".*rope_scaling", FutureWarning)
            self.lm: Any = KimiLinearForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation=FORMS[0]
            ).eval()
        self.cache: Any = None
        self.skipped: dict[str, str] = {}

    def _new_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self.lm.config)

    def fill(self, tokens: int, reserve: int) -> None:
        """Replace the latents of a few warm tokens by `tokens` random ones; 0 leaves them."""
        self.cache = self._new_cache()
        vocab = self.config.vocab_size
        warm = torch.tensor([[token % vocab for token in WARM_TOKENS]])
        self.lm(warm, cache=self.cache, use_cache=True)
        config = self.config
        for layer_idx, layer in enumerate(self.cache.layers):
            if not tokens or not config.is_global(layer_idx):
                continue
            layer.keys = torch.empty(1, 1, tokens, config.kv_lora_rank, dtype=self.dtype)
            layer.values = torch.empty(1, 1, tokens, config.qk_rope_head_dim, dtype=self.dtype)
            start = 0
            for block in random_latents(config, layer_idx, tokens, self.dtype):
                end = start + block.shape[1]
                layer.keys[:, 0, start:end] = block[..., : config.kv_lora_rank]
                layer.values[:, 0, start:end] = block[..., config.kv_lora_rank :]
                start = end

    def use(self, form: str) -> None:
        """Attend in this form from now on."""
        self.lm.set_attn_implementation(form)

    def step(self, token: int) -> Tensor:
        """Logits `[vocab]`, float32, after one more token."""
        out = self.lm(torch.tensor([[token]]), cache=self.cache, use_cache=True)
        logits: Tensor = out.logits[0, -1].float()
        return logits

    def steps(self) -> Mapping[str, Callable[[], object]]:
        """One decoding step with either form of attention, where memory allows it."""

        def step(form: str) -> None:
            self.use(form)
            self.step(5)

        # of the layers that were filled: a KDA layer counts only what it has itself read
        latents = [layer - 1 for layer in self.config.full_attn_layers]
        tokens = max(map(self.cache.get_seq_length, latents), default=0)
        limit = memory.available()
        self.skipped = {
            form: f"a step takes {describe_bytes(size)}, {describe_bytes(limit.bytes)} are left"
            for form in FORMS
            if limit and (size := step_bytes(self.config, tokens, form)) > limit.bytes
        }
        return {form: partial(step, form) for form in FORMS if form not in self.skipped}

    def prompts(self, tokens: int) -> Mapping[str, Callable[[], object]]:
        """A prompt in one call, logits of its last token only, with either form of attention."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.config.vocab_size, (1, tokens), generator=generator)

        def read(form: str) -> None:
            self.use(form)
            self.lm(ids, cache=self._new_cache(), use_cache=True, logits_to_keep=1)

        self.skipped = {}
        return {form: partial(read, form) for form in FORMS}

    def close(self) -> None:
        """Give the memory back."""
        self.lm = self.cache = None

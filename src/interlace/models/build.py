"""Models with random weights, from a preset or a config."""

import torch
from torch import nn

from interlace.config import PRESETS, HybridConfig, preset
from interlace.errors import ConfigError, InputError
from interlace.layers.kda import KimiDeltaAttention, ShortConvolution
from interlace.layers.moe import Router
from interlace.layers.packed import PackedLinear
from interlace.layers.residual import ResidualProjection
from interlace.models.hybrid import HybridLM

__all__ = ["build", "init_weights"]


def build(
    model: str | HybridConfig,
    *,
    seed: int = 0,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
) -> HybridLM:
    """A model with random weights; `interlace.load` reads trained ones, "default" among them.

    Args:
        model: name of a preset (`interlace.config.PRESETS`) or a config.
        seed: of the weights; the same seed gives the same weights on every device.
        dtype: of the weights, except those that stay in float32 (A_log, dt_bias, correction bias).
        device: where the weights go.

    Raises:
        ConfigError: an unknown preset, or weights quantised in a way that is not known.
        InputError: an unknown dtype, a seed out of range, or what is no config.
    """
    if isinstance(model, str) and model not in PRESETS:
        raise ConfigError(
            f"no preset is named {model!r}; use one of {', '.join(PRESETS)}, or interlace.load "
            "for a checkpoint folder."
        )
    config = preset(model) if isinstance(model, str) else model
    if not isinstance(config, HybridConfig):
        raise InputError(
            f"model must be the name of a preset or a HybridConfig, got {type(model).__name__}."
        )
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise InputError(f"seed must be an integer in 0..2^63-1, got {seed!r}.")
    with torch.device("meta"):
        lm = HybridLM(config)
    lm = lm.to(as_dtype(dtype))
    _allocate(lm, torch.device(device))
    if config.tie_word_embeddings:
        lm.lm_head.weight = lm.model.embed_tokens.weight
    init_weights(lm, seed)
    return lm


def _allocate(lm: HybridLM, device: torch.device) -> None:
    """Give every parameter and buffer of a model on the meta device memory of its own.

    `Module.to_empty` does the same through `empty_like`, which on the meta device imports a
    compiler and a computer algebra system: 70 MB and a second for nothing.
    """
    for module in lm.modules():
        for name, parameter in module.named_parameters(recurse=False):
            values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            setattr(module, name, nn.Parameter(values))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))


def init_weights(lm: HybridLM, seed: int = 0) -> None:
    """Initialise every parameter of `lm` as in the reports (spec section 5, "Initialisation").

    Matrices and embeddings are N(0, `initializer_range`), packed ones rounded to MXFP4, norms are
    one, the projections of Attention Residuals zero, the rest is up to its layer. Values are drawn
    in float32 on the CPU, in the order of the module tree, from a generator of their own.
    """
    generator = torch.Generator().manual_seed(seed)
    std = lm.config.initializer_range
    done: set[int] = set()
    for module in lm.modules():
        if isinstance(module, KimiDeltaAttention):
            module.reset_parameters(generator)
        elif isinstance(module, PackedLinear):
            shape = module.out_features, module.in_features
            module.pack(torch.empty(shape).normal_(0, std, generator=generator))
        elif (
            isinstance(module, nn.Linear | nn.Embedding | Router) and id(module.weight) not in done
        ):
            done.add(id(module.weight))
            values = torch.empty(module.weight.shape).normal_(0, std, generator=generator)
            module.weight.data.copy_(values)
            if isinstance(module, Router):
                module.e_score_correction_bias.zero_()
        elif isinstance(module, ResidualProjection):
            module.weight.data.zero_()
        elif not isinstance(module, ShortConvolution):
            weight = getattr(module, "weight", None)
            if isinstance(weight, nn.Parameter):
                weight.data.fill_(1)


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """The torch dtype of a name such as "bfloat16"; only those that weights may have."""
    names = {
        "float64": torch.float64,
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    if dtype not in names:
        raise InputError(f"dtype must be one of {', '.join(names)}, got {dtype!r}.")
    return names[dtype]

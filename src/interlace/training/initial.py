"""Start values of a run, on top of those of `interlace.build`."""

import math
import re
from pathlib import Path

import torch
from torch import nn

from interlace.checkpoints.reader import load
from interlace.errors import InputError
from interlace.models import HybridLM
from interlace.training.recipe import InitRule, ModelRecipe

__all__ = ["apply_init", "take_start"]


@torch.no_grad()
def apply_init(lm: nn.Module, model: ModelRecipe, rules: tuple[InitRule, ...], seed: int) -> None:
    """Change the weights of `lm` in place as the recipe says.

    Args:
        lm: a model with its own start values, in float32.
        model: `linear_init`, `embedding_std` and `decay_range`.
        rules: applied in order, each to every parameter that it matches.
        seed: of the values drawn here.

    Raises:
        InputError: a rule that matches nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    if model.linear_init == "fan_in":
        for module in lm.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0, module.in_features**-0.5, generator=generator)
    if model.embedding_std is not None:
        for module in lm.modules():
            if isinstance(module, nn.Embedding):
                module.weight.normal_(0, model.embedding_std, generator=generator)
    if model.decay_range is not None:
        for module in lm.modules():
            if hasattr(module, "dt_bias"):
                _start_decays(module, model.decay_range, generator)
    named = dict(lm.named_parameters())
    for rule in rules:
        hits = [parameter for name, parameter in named.items() if re.search(rule.match, name)]
        if not hits:
            raise InputError(
                f"[[init]] match = {rule.match!r} must match a parameter, it matches none."
            )
        for parameter in hits:
            parameter.mul_(0.0 if rule.zero else rule.scale)


def _start_decays(
    layer: nn.Module, bounds: tuple[float, float], generator: torch.Generator
) -> None:
    """Set `dt_bias` so that the decay -g of a zero input is log-uniform in `bounds`."""
    bias: torch.Tensor = layer.dt_bias  # type: ignore[assignment]
    a: torch.Tensor = layer.A_log  # type: ignore[assignment]
    rate = a.float().exp().repeat_interleave(bias.numel() // a.numel())
    low, high = map(math.log, bounds)
    decay = torch.empty(bias.shape).uniform_(low, high, generator=generator).exp()
    bound = getattr(layer, "lower_bound", None)
    if bound is None:
        wanted = decay / rate
        bias.copy_(wanted + torch.log(-torch.expm1(-wanted)))  # inverse of softplus
    else:
        bias.copy_(torch.logit(decay / -bound) / rate)


@torch.no_grad()
def take_start(lm: HybridLM, start: str, folder: Path) -> None:
    """Give `lm` the weights of a checkpoint.

    Args:
        lm: a model in float32.
        start: what `interlace.load` takes; a path is relative to `folder`.
        folder: of the recipe.

    Raises:
        InputError: a checkpoint of another model.
        CheckpointError: a folder that is no whole checkpoint.
    """
    path = folder / start
    found = load(path if path.is_dir() else start, dtype="float32", tokenizer=False)
    if found.config != lm.config:
        raise InputError(
            f"model.start must be a checkpoint of the recipe's model, got another config in "
            f"{start}; give model.preset and model.config as that model has them."
        )
    lm.load_state_dict(found.state_dict())

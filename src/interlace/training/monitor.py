"""What a loss curve does not show: whether every Gated MLA layer is alive.

A softmax that saturates puts its mass on one key, and the layer is then worth nothing. For each
Gated MLA layer: the spread of its scores (standard deviation over the visible keys, mean over
queries and heads), the mass of the heaviest key, and what the model loses, in bits per byte, when
the layer's mixer is replaced by zero.
"""

from typing import Any

import torch
from torch import nn

from interlace.models import HybridLM
from interlace.shapes import Tensor
from interlace.training.evaluate import EvalSubset

__all__ = ["mixer_report"]

_SCORED_ROWS, _SCORED_TOKENS = 4, 512


@torch.no_grad()
def mixer_report(
    lm: HybridLM, subset: EvalSubset, base: float | None = None
) -> list[dict[str, int | float]]:
    """One record per Gated MLA layer: 0-based "layer", "spread", "top_mass", "worth".

    Args:
        lm: the model; it is not changed.
        subset: text to evaluate on.
        base: bits per byte of the whole model on `subset`, when already known.
    """
    if base is None:
        base = subset.bits_per_byte(lm)
    layers = [i for i in range(lm.config.num_hidden_layers) if lm.config.is_global(i)]
    rows = [row for row in subset.rows if len(row) > 1][:_SCORED_ROWS]
    length = min(_SCORED_TOKENS, *(len(row) for row in rows)) if rows else 0
    report = []
    for i in layers:
        mixer = _mixer(lm, i)
        spread = top = float("nan")
        if length > 2:
            seen: list[Tensor] = []
            handle = mixer.register_forward_pre_hook(lambda _, args, out=seen: out.append(args[0]))
            try:
                lm(torch.stack([row[:length] for row in rows]))
            finally:
                handle.remove()
            spread, top = _score_statistics(mixer, seen[0])
        handle = mixer.register_forward_hook(_zero)
        try:
            worth = subset.bits_per_byte(lm) - base
        finally:
            handle.remove()
        report.append({"layer": i, "spread": spread, "top_mass": top, "worth": worth})
    return report


def _mixer(lm: HybridLM, layer: int) -> nn.Module:
    block: Any = lm.model.layers[layer]
    mixer: nn.Module = block.self_attn
    return mixer


def _zero(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return torch.zeros_like(output)


def _score_statistics(mixer: Any, x: Tensor) -> tuple[float, float]:
    config_heads, nope, shared_dim = mixer.num_heads, mixer.nope_dim, mixer.shared_dim
    if hasattr(mixer, "q_proj"):
        q = mixer.q_proj(x)
    else:
        q = mixer.q_b_proj(mixer.q_a_layernorm(mixer.q_a_proj(x)))
    q = q.unflatten(-1, (config_heads, nope + shared_dim)).float()
    latent, shared = mixer.kv_a_proj_with_mqa(x).split([mixer.latent_rank, shared_dim], -1)
    kv = mixer.kv_b_proj(mixer.kv_a_layernorm(latent)).unflatten(-1, (config_heads, -1))
    k = kv[..., :nope].float()
    scores = torch.einsum("bthn,bmhn->bhtm", q[..., :nope], k)
    scores = scores + torch.einsum("bthp,bmp->bhtm", q[..., nope:], shared.float())
    scores = scores * (nope + shared_dim) ** -0.5
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    count = visible.sum(-1).clamp(min=1)
    mean = (scores * visible).sum(-1) / count
    variance = ((scores - mean[..., None]).square() * visible).sum(-1) / count
    mass = scores.masked_fill(~visible, float("-inf")).softmax(-1).amax(-1)
    # the first queries see few keys, where one key has much of the mass in any layer
    late = slice(min(64, scores.shape[-1] // 2), None)
    return float(variance.sqrt()[..., late].mean()), float(mass[..., late].mean())

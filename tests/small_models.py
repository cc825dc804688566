"""Small models whose weights are large enough for every token to matter."""

import torch

import interlace
from interlace.config import HybridConfig, preset

DENSE = {
    "num_experts": None,
    "num_experts_per_token": None,
    "moe_intermediate_size": None,
    "num_shared_experts": 0,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.0,
}


def tiny(seed: int = 0, **changes) -> interlace.HybridLM:
    """KDA, Gated MLA, KDA, as wide as `kimi-linear-tiny`, with matrices of unit gain."""
    layers = {"num_hidden_layers": 3, "kda_layers": (1, 3), "full_attn_layers": (2,)}
    fields = {**DENSE, **layers, **changes}
    config: HybridConfig = preset("kimi-linear-tiny").replace(**fields)
    lm = interlace.build(config, seed=seed)
    generator = torch.Generator().manual_seed(seed + 100)
    with torch.no_grad():
        for parameter in lm.parameters():
            if parameter.ndim == 2:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    return lm.requires_grad_(False)


def marked(seed: int = 0) -> interlace.HybridLM:
    """The same with marks as in the bundled model, and one id that stands for nothing."""
    return tiny(seed, vocab_size=259, bos_token_id=256, eos_token_id=257)

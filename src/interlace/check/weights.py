"""Random weights in which every term shows.

Fresh weights hide mistakes: norms are one, the correction bias is zero, matrices are so small that
a layer hardly moves its stream. A preset is checked with these instead.
"""

import torch

from interlace.layers.packed import PackedLinear
from interlace.models import HybridLM

__all__ = ["enliven"]


@torch.no_grad()
def enliven(lm: HybridLM, seed: int = 0) -> HybridLM:
    """Draw every parameter and buffer of `lm` anew, away from its start. Mutates the model.

    Matrices have unit gain, packed ones as near as their format comes; norms are about one; biases
    and decays have both signs and sizes.

    Args:
        lm: the model.
        seed: of the draw.

    Returns:
        The same model.
    """
    generator = torch.Generator().manual_seed(seed)
    narrow = lm.lm_head.weight.dtype
    for name, value in [*lm.named_parameters(), *lm.named_buffers()]:
        if value.dtype == torch.uint8:
            continue
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("norm.weight"):
            noise = 1 + 0.3 * noise
        elif name.endswith("dt_bias"):
            noise = -2 + noise
        elif name.endswith(("A_log", "conv1d.weight")):
            noise = 0.5 * noise
        elif name.endswith("e_score_correction_bias"):
            # as narrow as it is stored, so that it comes back to the bit
            noise = (0.3 * noise).to(narrow)
        else:
            noise = noise * value.shape[-1] ** -0.5
        value.copy_(noise)
    for module in lm.modules():
        if isinstance(module, PackedLinear):
            shape = module.out_features, module.in_features
            module.pack(torch.randn(shape, generator=generator) * module.in_features**-0.5)
    return lm

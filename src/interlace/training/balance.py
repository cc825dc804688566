"""Every routed expert gets its share: the routers' biases, moved once after each step.

The bias decides only who is chosen and is no parameter: no gradient moves it. After a step it
becomes the one under which that step's tokens would have been spread evenly (spec section 7.5, by
histogram), and it is used from the next step on, so that no token takes part in making the bias
that routes it. Processes add their histograms up. Evaluation leaves the biases alone, and after
training they are frozen.
"""

import torch

from interlace.layers.moe import Router
from interlace.models import HybridLM
from interlace.ops.moe import bias_from_counts, margin_counts
from interlace.shapes import Tensor
from interlace.training.processes import Peers, SingleProcess

__all__ = ["Balancer"]


class Balancer:
    """The routers of a model in training; nothing to do where it has none.

    Args:
        lm: what runs forward; its routers are watched while it trains.
    """

    def __init__(self, lm: HybridLM) -> None:
        config = lm.config
        self.top_k = config.num_experts_per_token or 0
        # with every expert chosen there is nothing to balance
        balanced = self.top_k < (config.num_experts or 0)
        self.routers = {
            name: module
            for name, module in lm.named_modules()
            if balanced and isinstance(module, Router)
        }
        self._counts: dict[str, Tensor] = {}
        for name, router in self.routers.items():
            router.watch = lambda scores, name=name: self._note(name, scores)

    def _note(self, name: str, scores: Tensor) -> None:
        router = self.routers[name]
        if not router.training:
            return
        counts = margin_counts(scores, router.e_score_correction_bias, self.top_k)
        self._counts[name] = self._counts[name] + counts if name in self._counts else counts

    @torch.no_grad()
    def update(self, peers: SingleProcess | Peers) -> None:
        """Move every bias by what was seen since the last call, in all processes alike."""
        if not self._counts:
            return
        names = list(self._counts)
        summed = torch.stack([self._counts.pop(name) for name in names])  # [routers, E, bins]
        peers.add(summed)
        for name, counts in zip(names, summed, strict=True):
            bias = self.routers[name].e_score_correction_bias
            bias.copy_(bias_from_counts(counts, bias, self.top_k))

    def tensors(self) -> dict[str, Tensor]:
        """The biases as "balance.<router>.bias", for a checkpoint."""
        return {
            f"balance.{name}.bias": router.e_score_correction_bias
            for name, router in self.routers.items()
        }

"""The dense gated feed-forward network (spec section 7.1)."""

from collections.abc import Callable
from functools import partial

from torch import nn

from interlace.config import HybridConfig
from interlace.layers.linear import Linear, gated
from interlace.layers.step import feed_step
from interlace.ops.mlp import situ_glu, swiglu
from interlace.shapes import Float, Tensor

__all__ = ["MLP", "activation"]

Glu = Callable[[Tensor, Tensor], Tensor]


def activation(config: HybridConfig) -> Glu:
    """What stands between the products: SwiGLU, or SiTU-GLU with the caps of the config."""
    if config.hidden_act == "situ":
        caps = config.activation_situ_beta, config.activation_situ_linear_beta
        return partial(situ_glu, beta=caps[0], linear_beta=caps[1])
    return swiglu


class MLP(nn.Module):
    """`down(glu(gate(x), up(x)))`.

    Args:
        hidden_size: width D of input and output.
        intermediate_size: width F between the two products.
        glu: gated activation; see `activation`.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, glu: Glu = swiglu) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)
        self.glu = glu

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """Apply the network to every row."""
        stepped = feed_step(self, x, (self.gate_proj, self.up_proj, self.down_proj), self.glu)
        if stepped is not None:
            return stepped
        out: Tensor = self.down_proj(gated(x, self.gate_proj, self.up_proj, self.glu))
        return out

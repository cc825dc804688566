"""The dense gated feed-forward network (spec section 7.1)."""

from torch import nn

from interlace.ops.mlp import swiglu
from interlace.shapes import Float, Tensor

__all__ = ["MLP"]


class MLP(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))`.

    Args:
        hidden_size: width D of input and output.
        intermediate_size: width F between the two products.
    """

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows D"]:
        """Apply the network to every row."""
        out: Tensor = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
        return out

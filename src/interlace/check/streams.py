"""What joins the sublayers of the reference: a sum, or Attention Residuals as they are written.

    plain            reads x                      x <- x + output
    block size n     reads mix(bank, live)        live <- live + output; every n layers, before an
                                                  attention adds: bank <- bank, live; live <- 0
    block size 0     reads mix of all outputs     each output is a candidate by itself

Spec section 6; K3 report, equations 8 to 10.
"""

from collections.abc import Callable

from interlace.shapes import Float, Tensor

__all__ = ["Streams"]

Mix = Callable[[list[Tensor], Tensor, str], Tensor]


class Streams:
    """The residual streams of one row, on their way through the layers.

    Args:
        x: the embedding.
        num_layers: of the model.
        block_size: layers per block, 0 for the full form, None for plain residuals.
        mix: the mixture of a bank and a last candidate, for the read of the name given.
    """

    def __init__(
        self, x: Float[Tensor, "T D"], num_layers: int, block_size: int | None, mix: Mix
    ) -> None:
        self.x: Tensor = x
        """What the next sublayer reads."""
        self._num_layers = num_layers
        self._size = block_size
        self._mix = mix
        self._bank: list[Tensor] = []
        self._live: Tensor | None = x

    def add_mixer(self, layer: int, y: Float[Tensor, "T D"]) -> None:
        """Take in the output of a layer's attention. Mutates the streams."""
        if self._size and layer % self._size == 0:
            # the raw stream, and after the read of this attention
            assert self._live is not None
            self._bank.append(self._live)
            self._live = None
        self._add(y, f"model.layers.{layer}.mlp_res")

    def add_feed_forward(self, layer: int, y: Float[Tensor, "T D"]) -> None:
        """Take in the output of a layer's feed-forward. Mutates the streams."""
        last = layer + 1 == self._num_layers
        after = "model.output_attn_res" if last else f"model.layers.{layer + 1}.self_attention_res"
        self._add(y, after)

    def _add(self, y: Tensor, read: str) -> None:
        if self._size is None:
            self.x = self.x + y
            return
        if self._size == 0:
            assert self._live is not None
            self._bank.append(self._live)
            self._live = y
        else:
            self._live = y if self._live is None else self._live + y
        self.x = self._mix(self._bank, self._live, read)

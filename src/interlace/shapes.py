"""The legend of axis letters, and the annotations that carry them.

One meaning per letter, everywhere in the library:

    B  batch                          R  latent rank of MLA
    T  tokens of this call            K  key width of a KDA head
    M  tokens in memory (cached + T)  C  chunk length
    D  hidden width                   W  short-convolution width
    H  heads                          E  experts
    N  nope width per head            F  feed-forward width
    P  width of the shared key        L  layers
    V  value width

`S` counts the sequences of a packed batch. Everything else is spelled out. The KDA state is
`[B, H, K, V]` in float32; the latent cache is `[B, M, R + P]` and holds the latent after its norm,
then the shared key.
"""

from jaxtyping import Bool as Bool
from jaxtyping import Float as Float
from jaxtyping import Int as Int
from jaxtyping import UInt8 as UInt8
from torch import Tensor as Tensor

__all__ = ["LEGEND", "Bool", "Float", "Int", "Tensor", "UInt8"]

LEGEND: dict[str, str] = {
    "B": "batch",
    "T": "tokens of this call",
    "M": "tokens in memory (cached plus T)",
    "D": "hidden width",
    "H": "heads",
    "N": "nope width per head",
    "P": "width of the shared key",
    "V": "value width",
    "R": "latent rank",
    "K": "key width of a KDA head",
    "C": "chunk length",
    "W": "short-convolution width",
    "E": "experts",
    "F": "feed-forward width",
    "L": "layers",
    "S": "sequences of a packed batch",
}

"""What one KDA layer keeps: the state `[B, H, K, V]` and the last W - 1 inputs of its convolutions.

Fixed size, whatever the context. The state is float32 also where the model is bf16: it is read and
written once per token, and rounding it each time loses what it should remember. (In a float64
model, which exists to check the others, it is float64.) A layer hands in what it computed: new
tensors, or the state's own memory written over, where no gradient needs what was there; a state to
be kept is a copy (`clone`). The cache carries values, no gradients.
"""

from collections.abc import Sequence

import torch

from interlace.errors import CacheError
from interlace.shapes import Float, Tensor

__all__ = ["DeltaState"]

_PARTS = ("state", "conv_q", "conv_k", "conv_v")


class DeltaState:
    """State and convolution windows of one layer, zeros at first.

    Args:
        batch: rows.
        num_heads: H.
        key_dim: K.
        value_dim: V.
        conv_width: W; windows hold W - 1 tokens.
        device: where they live.
        conv_dtype: of the windows: that of the activations.
    """

    def __init__(
        self,
        batch: int,
        num_heads: int,
        key_dim: int,
        value_dim: int,
        conv_width: int,
        device: torch.device | str,
        conv_dtype: torch.dtype,
    ) -> None:
        sizes = (batch, num_heads, key_dim, value_dim, conv_width)
        if min(sizes) < 1:
            raise CacheError(
                f"a delta state needs batch, H, K, V and W of at least 1, got {sizes}; give the "
                "sizes of a KDA layer."
            )
        self.batch = batch
        state_dtype = torch.promote_types(conv_dtype, torch.float32)
        window = conv_width - 1
        self._tensors = {
            "state": _zeros((batch, num_heads, key_dim, value_dim), state_dtype, device),
            "conv_q": _zeros((batch, window, num_heads * key_dim), conv_dtype, device),
            "conv_k": _zeros((batch, window, num_heads * key_dim), conv_dtype, device),
            "conv_v": _zeros((batch, window, num_heads * value_dim), conv_dtype, device),
        }

    @property
    def state(self) -> Float[Tensor, "B H K V"]:
        """The delta rule's memory, float32."""
        return self._get("state")

    @property
    def conv_q(self) -> Float[Tensor, "B window channels"]:
        """Last W - 1 query projections before their convolution, oldest first."""
        return self._get("conv_q")

    @property
    def conv_k(self) -> Float[Tensor, "B window channels"]:
        """Last W - 1 key projections before their convolution, oldest first."""
        return self._get("conv_k")

    @property
    def conv_v(self) -> Float[Tensor, "B window value_channels"]:
        """Last W - 1 value projections before their convolution, oldest first."""
        return self._get("conv_v")

    @property
    def nbytes(self) -> int:
        """Bytes allocated for state and windows."""
        return sum(x.untyped_storage().nbytes() for x in self._tensors.values())

    @property
    def device(self) -> torch.device:
        """Where they live."""
        return self._tensors["state"].device

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is allocated, by name."""
        return dict(self._tensors)

    def update(
        self,
        state: Float[Tensor, "B H K V"],
        conv_q: Float[Tensor, "B window channels"],
        conv_k: Float[Tensor, "B window channels"],
        conv_v: Float[Tensor, "B window value_channels"],
    ) -> None:
        """Take over what a call returned. Mutates the cache.

        Raises:
            CacheError: a shape other than the cache's.
        """
        fresh = dict(zip(_PARTS, (state, conv_q, conv_k, conv_v), strict=True))
        for name, new in fresh.items():
            old = self._tensors[name]
            if new.shape != old.shape:
                raise CacheError(
                    f"{name} must be {list(old.shape)} for this cache, got {list(new.shape)}; use "
                    "a cache made for this layer and batch."
                )
        for name, new in fresh.items():
            self._tensors[name] = _own(new.detach().to(self._tensors[name].dtype))

    def clone(self) -> "DeltaState":
        """An independent copy."""
        other = object.__new__(DeltaState)
        other.batch = self.batch
        with torch.inference_mode(False):
            other._tensors = {name: x.clone() for name, x in self._tensors.items()}
        return other

    def clear(self) -> None:
        """Go back to zeros, the state before the first token. Mutates the cache."""
        with torch.inference_mode(False):
            self._tensors = {name: torch.zeros_like(x) for name, x in self._tensors.items()}

    @staticmethod
    def of_rows(sources: Sequence[tuple["DeltaState", int]]) -> "DeltaState":
        """A new state whose row i is a copy of row `sources[i][1]` of the state `sources[i][0]`.

        Args:
            sources: states of one layer's sizes, dtype and device, and a row of each.
        """
        other = object.__new__(DeltaState)
        other.batch = len(sources)
        with torch.inference_mode(False):
            other._tensors = {
                name: torch.stack([cache._tensors[name][row] for cache, row in sources])
                for name in _PARTS
            }
        return other

    def _get(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            # autograd cannot save what inference mode made
            tensor = self._tensors[name] = tensor.clone()
        return tensor


def _own(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy when it is a window on something larger."""
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    with torch.inference_mode(False):
        return torch.zeros(shape, dtype=dtype, device=device)

"""Matrices of a layer: dense ones, and those in int8 or int4, with the same two verbs for both.

    project(x, a, b, c)       three products of one input
    gated(x, gate, up, glu)   the two products of a gated network, and what joins them

Few tokens on a CPU take one call of the native core for all of them (`ops.linear` chooses). A
module with hooks, or with a forward of its own, is always called by itself.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from interlace.layers.packed import PackedLinear
from interlace.ops.linear import GROUP, Packed, linear, quantize, unpack
from interlace.ops.linear import gated as gated_product
from interlace.ops.linear import project as products
from interlace.ops.linear.native_form import Weight
from interlace.ops.mlp import situ_glu, swiglu
from interlace.ops.mxfp4.linear import expand
from interlace.shapes import Float, Tensor

__all__ = [
    "GluForm",
    "Linear",
    "QuantizedLinear",
    "few",
    "gated",
    "glu_form",
    "matrices",
    "project",
]


# Rows of x up to which a layer takes the way of a decoding step.
FEW = 32


class Linear(nn.Linear):
    """`x W^T`, without a bias.

    Args:
        in_features: width of a row of x.
        out_features: rows of W.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        """Multiply every row."""
        return linear(x, self.weight)


class QuantizedLinear(nn.Module):
    """`x W^T` with W in int8 or int4; buffers, which nothing trains and no change of dtype touches.

    Args:
        in_features: a multiple of 32.
        out_features: rows of W.
        bits: 8 or 4.
    """

    weight_codes: Tensor
    weight_scale: Tensor

    def __init__(self, in_features: int, out_features: int, bits: int) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bits = in_features, out_features, bits
        codes = (torch.int8, in_features) if bits == 8 else (torch.uint8, in_features // 2)
        self.hold(
            Packed(
                torch.empty(out_features, codes[1], dtype=codes[0]),
                torch.empty(out_features, in_features // GROUP, dtype=torch.bfloat16),
            )
        )
        if not self.weight_codes.is_meta:
            bound = in_features**-0.5
            start = torch.empty(out_features, in_features).uniform_(-bound, bound)
            self.hold(quantize(start, bits))

    @classmethod
    def of(cls, weight: Float[Tensor, "F D"], bits: int) -> "QuantizedLinear":
        """A module that holds `weight` rounded."""
        with torch.device("meta"):
            module = cls(weight.shape[1], weight.shape[0], bits)
        module.hold(quantize(weight, bits))
        return module

    def hold(self, packed: Packed) -> None:
        """Take these codes as W. Mutates the module."""
        self.register_buffer("weight_codes", packed.codes)
        self.register_buffer("weight_scale", packed.scale)

    def forward(self, x: Float[Tensor, "*rows D"]) -> Float[Tensor, "*rows F"]:
        """Multiply every row, in the dtype of `x`."""
        return linear(x, self.matrix)

    @property
    def matrix(self) -> Packed:
        """The codes and scales of W."""
        return Packed(self.weight_codes, self.weight_scale)

    def expanded(self, dtype: torch.dtype = torch.bfloat16) -> Float[Tensor, "F D"]:
        """W itself, rounded once to `dtype`."""
        return unpack(self.matrix, dtype)

    def extra_repr(self) -> str:
        """Sizes, for `print(model)`."""
        return f"{self.in_features}, {self.out_features}, bits={self.bits}"

    def _apply(self, fn: Any, recurse: bool = True) -> "QuantizedLinear":
        kept = self.weight_scale
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.weight_scale.dtype != torch.bfloat16:
            # moved, but not converted
            self.weight_scale = kept.to(self.weight_scale.device)
        return self


Glu = Callable[[Tensor, Tensor], Tensor]


def few(x: Float[Tensor, "*rows D"]) -> bool:
    """Whether the rows are so few, and no gradient is asked for, that calls cost more than memory.

    A layer may then hold all its projections of `x` at once.
    """
    return x.numel() <= FEW * x.shape[-1] and not torch.is_grad_enabled()


def project(x: Float[Tensor, "*rows D"], *modules: nn.Module) -> list[Float[Tensor, "*rows _"]]:
    """What each module makes of `x`."""
    weights = matrices(modules)
    if weights is None:
        return [module(x) for module in modules]
    return products(x, weights)


def gated(
    x: Float[Tensor, "*rows D"], gate: nn.Module, up: nn.Module, glu: Glu
) -> Float[Tensor, "*rows F"]:
    """glu(gate(x), up(x))."""
    weights, form = matrices((gate, up)), glu_form(glu)
    if weights is None or form is None:
        return glu(gate(x), up(x))
    how = expand if isinstance(gate, PackedLinear) else unpack
    return gated_product(x, *weights, situ=form.caps, expand=how)


class GluForm(NamedTuple):
    """SwiGLU, or SiTU-GLU with its caps."""

    caps: tuple[float | None, float | None] | None


def glu_form(glu: Glu) -> GluForm | None:
    """Which of the known activations `glu` is, or None."""
    if glu is swiglu:
        return GluForm(None)
    if isinstance(glu, partial) and glu.func is situ_glu and not glu.args:
        return GluForm((glu.keywords.get("beta", 4.0), glu.keywords.get("linear_beta", 25.0)))
    return None


def matrices(modules: Sequence[nn.Module]) -> list[Weight] | None:
    """The matrices of modules that do nothing but multiply, or None if one may do more."""
    weights: list[Weight] = []
    for module in modules:
        plain = isinstance(module, _PLAIN) and "forward" not in module.__dict__
        if not plain or module._forward_hooks or module._forward_pre_hooks:
            return None
        weights.append(_matrix(module))
    packed = sum(isinstance(module, PackedLinear) for module in modules)
    return weights if packed in (0, len(modules)) else None


def _matrix(module: nn.Module) -> Weight:
    if isinstance(module, PackedLinear):
        return Packed(module.weight_packed, module.weight_scale)
    if isinstance(module, QuantizedLinear):
        return module.matrix
    return cast(Tensor, module.weight)


_PLAIN = (Linear, QuantizedLinear, PackedLinear)

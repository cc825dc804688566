"""Which way of multiplying takes a call: the native core for few rows, else torch."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch.nn.functional as nnf

from interlace.ops.dispatch import Backend, choose
from interlace.ops.linear.codes import Packed, unpack
from interlace.ops.linear.native_form import Weight, linear_native, refusal
from interlace.ops.linear.packed import Unpack, packed_linear
from interlace.ops.mlp import situ_glu, swiglu
from interlace.shapes import Float, Tensor

__all__ = ["LINEAR_BACKENDS", "LinearCall", "gated", "linear", "project"]

# Rows of one call up to which the native core is the faster way (README: measured).
NATIVE_ROWS = 4
NATIVE_ROWS_PACKED = 32


class LinearCall(NamedTuple):
    """What the choice looks at."""

    rows: int
    """Rows of x."""
    packed: bool = False
    """Whether a weight is kept in codes."""
    native: str | None = "the tensors are not known"
    """Why the native core cannot take the tensors, or None."""


def _refuses_native(call: LinearCall) -> str | None:
    return call.native


def _passes_native(call: LinearCall) -> str | None:
    most = NATIVE_ROWS_PACKED if call.packed else NATIVE_ROWS
    if call.rows <= most:
        return None
    kept = "codes" if call.packed else "weights"
    return f"above {most} rows torch multiplies {kept} faster; here are {call.rows}"


def _native(
    x: Tensor, weights: Sequence[Weight], *, expand: Unpack = unpack, **glu: Any
) -> list[Tensor]:
    return linear_native(x, weights, **glu)


def _torch(
    x: Tensor,
    weights: Sequence[Weight],
    *,
    expand: Unpack = unpack,
    glu: str = "",
    beta: float = 0.0,
    linear_beta: float = 0.0,
) -> list[Tensor]:
    outs = [
        packed_linear(x, w, expand) if isinstance(w, Packed) else nnf.linear(x, w) for w in weights
    ]
    if not glu:
        return outs
    gate, up = outs
    if glu == "situ":
        return [situ_glu(gate, up, beta, linear_beta or None)]
    return [swiglu(gate, up)]


LINEAR_BACKENDS = (
    Backend(name="linear.native", refuses=_refuses_native, passes=_passes_native, run=_native),
    Backend(name="linear.torch", refuses=lambda _: None, run=_torch),
)
"""The ways of `linear`, `project` and `gated`, in order of preference."""


def _call(x: Tensor, weights: Sequence[Weight]) -> LinearCall:
    rows = x.numel() // max(1, x.shape[-1])
    packed = any(isinstance(w, Packed) for w in weights)
    return LinearCall(rows, packed, refusal(x, weights))


def project(
    x: Float[Tensor, "*rows D"],
    weights: Sequence[Weight],
    *,
    expand: Unpack = unpack,
    backend: str = "auto",
) -> list[Float[Tensor, "*rows _"]]:
    """X W^T for each of `weights`, which may differ in F, in the dtype of `x`.

    Args:
        x: rows, dtype of the dense weights.
        weights: W [F, D], or codes of it.
        expand: codes to weights, for torch; those of int8 and int4 unless told otherwise.
        backend: the name of one of `LINEAR_BACKENDS`, or "auto".

    Raises:
        BackendUnavailable: no way has this name, or the named one cannot take the call.
        ShapeError: codes that are not as wide as `x`.
    """
    way = choose(LINEAR_BACKENDS, _call(x, weights), backend)
    outs: list[Tensor] = way.run(x, weights, expand=expand)
    return outs


def linear(
    x: Float[Tensor, "*rows D"],
    weight: Weight,
    *,
    expand: Unpack = unpack,
    backend: str = "auto",
) -> Float[Tensor, "*rows F"]:
    """X W^T: `project` for one weight."""
    return project(x, (weight,), expand=expand, backend=backend)[0]


def gated(
    x: Float[Tensor, "*rows D"],
    gate: Weight,
    up: Weight,
    *,
    situ: tuple[float | None, float | None] | None = None,
    expand: Unpack = unpack,
    backend: str = "auto",
) -> Float[Tensor, "*rows F"]:
    """SwiGLU or SiTU-GLU of x G^T and x U^T (spec section 7.1).

    Args:
        x: rows, dtype of the dense weights.
        gate: G [F, D].
        up: U [F, D].
        situ: caps of SiTU-GLU, as `situ_glu` has them; None for SwiGLU.
        expand: as for `project`.
        backend: as for `project`.

    Raises:
        BackendUnavailable, ShapeError: as `project`.
    """
    weights = (gate, up)
    way = choose(LINEAR_BACKENDS, _call(x, weights), backend)
    run = partial(way.run, x, weights, expand=expand)
    if situ is None:
        outs: list[Tensor] = run(glu="swish")
    else:
        outs = run(glu="situ", beta=situ[0] or 1.0, linear_beta=situ[1] or 0.0)
    return outs[0]

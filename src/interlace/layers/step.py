"""A decoding step of a whole mixer or feed-forward in one call of the native core.

    layer -> what it holds, checked once -> step(x, state) -> y

The core runs the kernels that the parts of the layer would have run, in the same order, so the
result is the same to the bit; what is saved are the calls. Before each step it is asked whether
the layer still is what was checked: the same modules, weights in the same memory, no hooks.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from operator import contains, is_
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from interlace.caches import DeltaState
from interlace.layers.linear import glu_form, matrices
from interlace.ops.dispatch import Backend, choose
from interlace.ops.linear import NATIVE_ROWS, NATIVE_ROWS_PACKED, Packed
from interlace.ops.native import core, reason
from interlace.shapes import Float, Tensor

__all__ = ["STEP_BACKENDS", "StepCall", "feed_step", "kda_step"]


class StepCall(NamedTuple):
    """What the choice looks at."""

    rows: int
    """Tokens of all rows."""
    packed: bool = False
    """Whether every weight is kept in codes."""
    native: str | None = "the layer is not known"
    """Why the native core cannot take the layer, or None."""


def _refuses_native(call: StepCall) -> str | None:
    return call.native


def _passes_native(call: StepCall) -> str | None:
    most = NATIVE_ROWS_PACKED if call.packed else NATIVE_ROWS
    if call.rows <= most:
        return None
    return f"above {most} tokens torch multiplies faster; here are {call.rows}"


STEP_BACKENDS = (
    Backend(name="step.native", refuses=_refuses_native, passes=_passes_native, run=lambda: None),
    Backend(name="step.calls", refuses=lambda _: None, run=lambda: None),
)
"""The ways of a layer's step, in order of preference: one call, or one for each part."""


_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_CONTENTS = ("_modules", "_parameters", "_buffers")


class _Prepared:
    """What the core holds of a layer, or why it holds nothing; and what must stay as it was."""

    __slots__ = ("_hooks", "_maps", "_owns", "_values", "native", "packed", "refused")

    def __init__(
        self,
        layer: nn.Module,
        modules: Iterable[nn.Module],
        packed: bool,
        make: Callable[[], Any],
        refused: str | None,
    ) -> None:
        owns = [module.__dict__ for module in (layer, *modules)]
        self._owns = owns[1:]
        self._hooks = [own[name] for own in self._owns for name in _HOOKS]
        # of the layer everything: its sizes, epsilons and bounds are held too
        self._maps = [owns[0], *(own[name] for own in owns for name in _CONTENTS)]
        self._values = [value for held in self._maps for value in held.values()]
        self._values.append(None)
        self.packed = packed
        self.refused = refused
        self.native: Any = make() if refused is None else None

    def current(self) -> bool:
        """Whether the layer is still what was prepared."""
        now = chain(chain.from_iterable(map(dict.values, self._maps)), (None,))
        if not all(map(is_, now, self._values)):
            return False
        return not any(self._hooks) and not any(map(contains, self._owns, repeat("forward")))


_PREPARED: weakref.WeakKeyDictionary[nn.Module, _Prepared] = weakref.WeakKeyDictionary()


def _of(layer: nn.Module, prepare: Callable[[], _Prepared]) -> _Prepared:
    found = _PREPARED.get(layer)
    if found is None or not found.current():
        found = _PREPARED[layer] = prepare()
    return found


def _takes(found: _Prepared, x: Tensor) -> bool:
    refused = found.refused or _refusal(x)
    call = StepCall(x.numel() // max(1, x.shape[-1]), found.packed, refused)
    return choose(STEP_BACKENDS, call).name == "step.native"


def _refusal(*tensors: Tensor) -> str | None:
    if any(x.dtype != torch.bfloat16 or not x.is_contiguous() for x in tensors):
        return "it takes contiguous bfloat16"
    return reason(*tensors)


def _refuses(modules: Sequence[nn.Module], others: Iterable[Tensor]) -> str | None:
    """Why the core cannot hold these matrices and other tensors, or None."""
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        return "this version of torch does not lend its tensors quickly enough"
    weights = matrices(modules)
    if weights is None:
        return "a module does more than multiply"
    tensors = [t for w in weights for t in (w if isinstance(w, Packed) else (w,))]
    if any(not isinstance(w, Packed) and w.dtype != torch.bfloat16 for w in weights):
        return "it takes weights in bfloat16 or in codes"
    kept = (torch.bfloat16, torch.float32)
    if any(t.dtype not in kept for t in others):
        return "it takes taps, norms and gates in bfloat16 or float32"
    if not all(t.is_contiguous() for t in (*tensors, *others)):
        return "weights must be contiguous"
    with torch.no_grad():
        return reason(*tensors, *others)


def kda_step(
    layer: Any, x: Float[Tensor, "B T D"], cache: DeltaState
) -> Float[Tensor, "B T D"] | None:
    """What a KDA layer makes of few tokens, or None where its parts must be called one by one.

    Args:
        layer: a `KimiDeltaAttention`.
        x: normed input.
        cache: state and windows, which are overwritten.
    """
    if x.dtype != torch.bfloat16:
        return None
    found = _of(layer, lambda: _prepare_kda(layer))
    state = cache.state
    windows = (cache.conv_q, cache.conv_k, cache.conv_v)
    if state.dtype != torch.float32 or any(w.dtype != torch.bfloat16 for w in windows):
        return None
    if not _takes(found, x):
        return None
    y = torch.empty_like(x)
    if not found.native.step(x, state, *windows, y):
        del _PREPARED[layer]
        return kda_step(layer, x, cache)
    return y


def _prepare_kda(layer: Any) -> _Prepared:
    low = not layer.full_rank_gate
    gates = layer.g_a_proj if low else layer.g_proj
    first = [layer.q_proj, layer.k_proj, layer.v_proj, layer.f_a_proj, layer.b_proj, gates]
    last = [layer.f_b_proj, *([layer.g_b_proj] if low else []), layer.o_proj]
    convolutions = (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d)
    taps = [convolution.weight for convolution in convolutions]
    others = (*taps, layer.A_log, layer.dt_bias, layer.o_norm.weight)
    refused = _refuses([*first, *last], others)
    if layer.A_log.dtype != torch.float32 or layer.dt_bias.dtype != torch.float32:
        refused = refused or "it takes A_log and dt_bias in float32"

    def make() -> Any:
        held: list[Any] = list(matrices([*first, *last]) or ())
        if not low:
            held.insert(7, None)
        return core().KdaLayer(
            held,
            taps,
            layer.A_log,
            layer.dt_bias,
            layer.o_norm.weight,
            layer.q_proj.in_features,
            layer.lower_bound or 0.0,
            layer.eps,
            layer.l2_norm_eps,
        )

    modules = (*first, *last, *convolutions, layer.o_norm)
    return _Prepared(layer, modules, _packed([*first, *last]), make, refused)


def feed_step(
    layer: nn.Module,
    x: Float[Tensor, "*rows D"],
    modules: tuple[nn.Module, nn.Module, nn.Module],
    glu: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "*rows D"] | None:
    """What a gated feed-forward makes of few rows, or None where its parts must be called.

    Args:
        layer: whose it is.
        x: normed input.
        modules: gate, up and down.
        glu: what stands between the products.
    """
    if x.dtype != torch.bfloat16 or torch.is_grad_enabled():
        return None
    if x.numel() > NATIVE_ROWS_PACKED * x.shape[-1]:
        return None
    found = _of(layer, lambda: _prepare_feed(layer, modules, glu))
    if not _takes(found, x):
        return None
    rows = x if x.ndim == 2 else x.view(-1, x.shape[-1])
    y = torch.empty_like(rows)
    if not found.native.step(rows, y):
        del _PREPARED[layer]
        return feed_step(layer, x, modules, glu)
    return y if x.ndim == 2 else y.view(x.shape)


def _prepare_feed(layer: nn.Module, modules: tuple[nn.Module, ...], glu: Any) -> _Prepared:
    form = glu_form(glu)
    refused = _refuses(modules, ()) if form else "the activation is not known to it"

    def make() -> Any:
        caps = form.caps if form else None
        held = matrices(modules)
        width = cast(Any, modules[0]).in_features
        if caps is None:
            return core().MlpLayer(held, width, "swish", 0.0, 0.0)
        return core().MlpLayer(held, width, "situ", caps[0] or 1.0, caps[1] or 0.0)

    return _Prepared(layer, modules, _packed(modules), make, refused)


def _packed(modules: Sequence[nn.Module]) -> bool:
    weights = matrices(modules)
    return bool(weights) and all(isinstance(w, Packed) for w in weights or ())

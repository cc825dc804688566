"""The next token from its logits: greedy, or drawn with a temperature and a nucleus (top-p).

Drawing happens on the CPU in float64 with a generator of its own, so that a seed means the same on
every device and thread count as long as the logits agree.
"""

import math
import sys
from numbers import Integral, Real
from typing import TypeGuard

import torch

from interlace.errors import InputError, NonFiniteError
from interlace.shapes import Bool, Float, Tensor

__all__ = ["Sampler", "check_sampling", "is_integer", "is_number"]


def check_sampling(temperature: object, top_p: object, seed: object) -> None:
    """Refuse options that mean nothing; their types are checked too, whatever the caller passed.

    Raises:
        InputError: a temperature that is negative or not finite, top_p outside (0, 1], or a seed
            outside 0..2^63-1.
    """
    if not is_number(temperature) or not 0 <= temperature <= sys.float_info.max:
        raise InputError(
            f"temperature must be 0 (greedy) or a positive number, got {temperature!r}."
        )
    if not is_number(top_p) or not 0 < top_p <= 1:
        raise InputError(f"top_p must lie in (0, 1], got {top_p!r}; 1 keeps every token.")
    if not is_integer(seed) or not 0 <= seed < 2**63:
        raise InputError(f"seed must lie in 0..2^63-1 and be an integer, got {seed!r}.")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether `value` counts: an integer of any library, but no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a real number, but no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


class Sampler:
    """Picks token ids.

    Args:
        temperature: 0 takes the most likely token; else logits are divided by it.
        top_p: draw from the smallest set of most likely tokens that holds this share.
        seed: of the draws; the same seed and logits give the same tokens.

    Raises:
        InputError: as `check_sampling`.
    """

    def __init__(self, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0) -> None:
        check_sampling(temperature, top_p, seed)
        self.temperature = temperature
        self.top_p = top_p
        self._generator = torch.Generator().manual_seed(seed)

    def pick(
        self, logits: Float[Tensor, "vocab"], banned: Bool[Tensor, "vocab"] | None = None
    ) -> int:
        """The next id; never one that is `banned`.

        Raises:
            NonFiniteError: a logit that may be picked is not a finite number.
        """
        logits = logits.detach().to("cpu", torch.float64)
        allowed = logits if banned is None else logits[~banned]
        if not bool(torch.isfinite(allowed).all()):
            raise NonFiniteError(
                "logits must be finite numbers, the model gave infinity or NaN; "
                "the weights are damaged or overflow in this dtype (try --dtype float32)."
            )
        if banned is not None:
            logits = logits.masked_fill(banned, -math.inf)
        if self.temperature == 0:
            return int(logits.argmax())
        # less the maximum: a small temperature then underflows to 0 and never overflows
        weights = torch.exp((logits - logits.max()) / self.temperature)
        ordered, ids = weights.sort(descending=True, stable=True)
        total = ordered.cumsum(0)
        # a token is in the nucleus when the tokens before it do not yet hold the share
        kept = int((total - ordered < self.top_p * total[-1]).sum())
        draw = torch.rand((), generator=self._generator, dtype=torch.float64) * total[kept - 1]
        place = int(torch.searchsorted(total[:kept], draw, right=True))
        return int(ids[min(place, kept - 1)])

"""The next token from its logits, by the options of one prompt.

Drawing happens on the CPU in float64 with a generator of the row's own, so that a seed means the
same on every device and thread count, and beside any neighbours, as long as the logits agree.
Log-probabilities are those of the model itself, before any option touches the logits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from interlace.errors import NonFiniteError
from interlace.generation.options import SamplingOptions
from interlace.shapes import Bool, Float, Int, Tensor

__all__ = ["Sampler", "TokenLogprob", "require_finite", "token_logprob"]

# larger sums would overflow when they are combined; no model means anything by such a logit
_LARGEST = 1e300
# candidates that are sorted at first, where only a share of a large vocabulary is wanted
_FEW = 256


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The natural log-probability of a token under the model's own distribution.

    Args:
        token: the id.
        logprob: of that id, whether drawn or not.
        top: the most likely ids at that place with theirs, most likely first, equal ones by id.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(logits: Float[Tensor, "vocab"], token: int, top: int = 0) -> TokenLogprob:
    """What the model gives to `token` and to the `top` most likely ids; softmax in float64."""
    logprobs = logits.detach().to("cpu", torch.float64).log_softmax(0)
    values, ids = _largest(logprobs, min(top, len(logprobs)))
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return TokenLogprob(token, float(logprobs[token]), tuple(pairs))


def require_finite(logits: Float[Tensor, "..."]) -> None:
    """Refuse logits that mean nothing.

    Raises:
        NonFiniteError: one that is no finite number.
    """
    if not bool(torch.isfinite(logits).all()):
        raise NonFiniteError(
            "logits must be finite numbers, the model gave infinity or NaN; "
            "the weights are damaged or overflow in this dtype (try --dtype float32)."
        )


class Sampler:
    """Picks the tokens of one row.

    Args:
        options: how; the seed is of this sampler's own generator.
        banned: ids that are never drawn.
        prompt: ids that count as seen for the repetition penalty.
    """

    def __init__(
        self,
        options: SamplingOptions | None = None,
        banned: Bool[Tensor, "vocab"] | None = None,
        prompt: Sequence[int] = (),
    ) -> None:
        self.options = options or SamplingOptions()
        self._banned = banned
        self._generator = torch.Generator().manual_seed(self.options.seed)
        self._bias = dict(self.options.bias)
        repeats = self.options.repetition_penalty != 1
        self._seen = set(prompt) if repeats else set()
        self._made: set[int] = set()

    def pick(self, logits: Float[Tensor, "vocab"]) -> int:
        """The next id; never one that is banned.

        Raises:
            NonFiniteError: a logit that may be picked is not a finite number.
        """
        scores = self._scores(logits.detach().to("cpu", torch.float64))
        token = self._greedy(scores) if self.options.temperature == 0 else self._draw(scores)
        self._made.add(token)
        self._seen.add(token)
        return token

    def _scores(self, logits: Tensor) -> Tensor:
        """The logits after bias and penalties, in float64; banned ones are minus infinity."""
        banned, options = self._banned, self.options
        allowed = logits if banned is None else logits[~banned]
        require_finite(allowed)
        changed = self._bias or options.repetition_penalty != 1 or options.presence_penalty
        if changed:
            logits = logits.clone()
            for token, bias in self._bias.items():
                logits[token] += bias
            if options.repetition_penalty != 1 and self._seen:
                seen = torch.tensor(sorted(self._seen))
                old = logits[seen]
                factor = options.repetition_penalty
                logits[seen] = torch.where(old > 0, old / factor, old * factor)
            if options.presence_penalty and self._made:
                logits[torch.tensor(sorted(self._made))] -= options.presence_penalty
            logits.clamp_(-_LARGEST, _LARGEST)
        return logits if banned is None else logits.masked_fill(banned, -math.inf)

    @staticmethod
    def _greedy(scores: Tensor) -> int:
        return int(scores.argmax())

    def _draw(self, scores: Tensor) -> int:
        options = self.options
        # less the maximum: a small temperature then underflows to 0 and never overflows
        weights = torch.exp((scores - scores.max()) / options.temperature)
        ids: Tensor | None = None
        if options.top_k is not None:
            weights, ids = _largest(weights, min(options.top_k, len(weights)))
        if options.top_p < 1:
            weights, chosen = _nucleus(weights, options.top_p)
            ids = chosen if ids is None else ids[chosen]
        # the largest weight is 1; one that underflowed to 0 can never be drawn
        kept = (weights >= options.min_p) & (weights > 0)
        kept_ids = kept.nonzero().flatten()
        total = weights[kept_ids].cumsum(0)
        draw = torch.rand((), generator=self._generator, dtype=torch.float64) * total[-1]
        place = int(torch.searchsorted(total, draw, right=True))
        choice = kept_ids[min(place, len(total) - 1)]
        return int(choice if ids is None else ids[choice])


def _nucleus(
    weights: Float[Tensor, "vocab"], share: float
) -> tuple[Float[Tensor, "kept"], Int[Tensor, "kept"]]:
    """The smallest set of largest weights that holds `share` of their sum, largest first.

    Only as many are sorted as are needed: sorting 160,000 takes as long as a step of a small model.
    """
    goal, size = share * float(weights.sum()), min(_FEW, len(weights))
    while True:
        values, ids = _largest(weights, size)
        total = values.cumsum(0)
        if size == len(weights) or float(total[-1]) >= goal:
            break
        size = min(8 * size, len(weights))
    # a token is in the nucleus when the tokens before it do not yet hold the share
    kept = max(1, int((total - values < goal).sum()))
    return values[:kept], ids[:kept]


def _largest(
    values: Float[Tensor, "vocab"], count: int
) -> tuple[Float[Tensor, "kept"], Int[Tensor, "kept"]]:
    """The `count` largest values and their places, largest first, equal ones by place."""
    found, places = values.topk(count)
    if count and count < len(values):
        # which of several equal values at the edge came is not defined: the first ones do
        edge = found[-1]
        above = (values > edge).nonzero().flatten()
        equal = (values == edge).nonzero().flatten()[: count - len(above)]
        places = torch.cat([above, equal])
    else:
        places = places.sort().values
    found, order = values[places].sort(descending=True, stable=True)
    return found, places[order]

"""How the new tokens of one prompt are drawn and when they end, as one checked record.

    logits -> bias -> repetition and presence penalties -> temperature -> top_k -> top_p -> min_p

Nothing here needs a model or torch, so the command line can refuse an option at once. What depends
on a model (ids of its vocabulary, the length of its context) is `check_for` alone.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypedDict, TypeGuard

from interlace.config import HybridConfig
from interlace.errors import InputError

__all__ = ["SamplingKeywords", "SamplingOptions", "is_integer", "is_number", "options_for_rows"]

LARGEST_SEED = 2**63 - 1


class SamplingKeywords(TypedDict, total=False):
    """The fields of `SamplingOptions` as keywords; `seed` may be a list, one per prompt."""

    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]]
    seed: int | Sequence[int]
    stop: str | Sequence[str] | None
    stop_tokens: Sequence[int]
    ignore_eos: bool
    logprobs: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingOptions:
    """Options of one prompt, checked when made.

    Args:
        max_tokens: new tokens at most; 0 reads the prompt and makes none.
        temperature: 0 takes the most likely token; else logits are divided by it.
        top_k: draw from so many most likely tokens; None from all.
        top_p: of those, from the smallest set of most likely ones that holds this share.
        min_p: of those, from the ones at least this many times as likely as the most likely.
        repetition_penalty: logits of tokens that the prompt or the new text has are divided by it
            where positive and multiplied where negative; 1 changes nothing.
        presence_penalty: taken off the logits of tokens that the new text has.
        logit_bias: added to the logits of these ids.
        seed: of the draws.
        stop: a string or several; the text ends before the first place where one begins, in
            whatever order they are given and however tokens cut them.
        stop_tokens: ids that end the text, beside those of the tokenizer.
        ignore_eos: never draw the ids at which the tokenizer ends a text, so that `max_tokens`
            tokens are made unless `stop` or `stop_tokens` ends them.
        logprobs: keep the log-probability of each new token, and of so many most likely ones, under
            the model's own distribution: before bias, penalties, temperature and filters. None
            keeps none.

    Raises:
        InputError: names the option, what it must be and what came. Types are checked too.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    seed: int = 0
    stop: str | Sequence[str] | None = None
    stop_tokens: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check_count("max_tokens", self.max_tokens, 0)
        if not _is_finite(self.temperature) or self.temperature < 0:
            raise InputError(
                f"temperature must be 0 (greedy) or a positive number, got {self.temperature!r}."
            )
        if self.top_k is not None:
            _check_count("top_k", self.top_k, 1, "; None keeps every token")
        if not is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise InputError(f"top_p must lie in (0, 1], got {self.top_p!r}; 1 keeps every token.")
        if not is_number(self.min_p) or not 0 <= self.min_p < 1:
            raise InputError(f"min_p must lie in [0, 1), got {self.min_p!r}; 0 keeps every token.")
        if not _is_finite(self.repetition_penalty) or self.repetition_penalty <= 0:
            raise InputError(
                "repetition_penalty must be a positive number, got "
                f"{self.repetition_penalty!r}; 1 changes nothing."
            )
        if not _is_finite(self.presence_penalty):
            raise InputError(
                f"presence_penalty must be a finite number, got {self.presence_penalty!r}; "
                "0 changes nothing."
            )
        if not is_integer(self.seed) or not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(f"seed must lie in 0..2^63-1 and be an integer, got {self.seed!r}.")
        if not isinstance(self.ignore_eos, bool):
            raise InputError(f"ignore_eos must be True or False, got {self.ignore_eos!r}.")
        if self.logprobs is not None:
            _check_count("logprobs", self.logprobs, 0, "; None keeps none")
        object.__setattr__(self, "logit_bias", _as_bias(self.logit_bias))
        object.__setattr__(self, "stop", _as_stop(self.stop))
        object.__setattr__(self, "stop_tokens", _as_ids(self.stop_tokens))

    @property
    def bias(self) -> tuple[tuple[int, float], ...]:
        """`logit_bias` as pairs in the order of their ids."""
        return self.logit_bias  # type: ignore[return-value]

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, empty for None."""
        return self.stop or ()  # type: ignore[return-value]

    def check_for(self, config: HybridConfig) -> None:
        """Refuse what this model cannot do.

        Raises:
            InputError: an id outside of its vocabulary, or more new tokens than its context.
        """
        if self.max_tokens >= config.max_position_embeddings:
            raise too_long(config, self.max_tokens)
        for name, ids in (
            ("logit_bias", [token for token, _ in self.bias]),
            ("stop_tokens", self.stop_tokens),
        ):
            for token in ids:
                if not 0 <= token < config.vocab_size:
                    raise InputError(
                        f"{name} must name ids in 0..{config.vocab_size - 1}, got {token}."
                    )

    def replace(self, **changes: Any) -> "SamplingOptions":
        """The same with other values, checked again."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All options by name, for JSON."""
        out = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        out["logit_bias"] = {str(token): value for token, value in self.bias}
        out["stop"], out["stop_tokens"] = list(self.stop_strings), list(self.stop_tokens)
        return out


def options_for_rows(
    count: int,
    options: SamplingOptions | Sequence[SamplingOptions] | None,
    changes: Mapping[str, Any],
) -> list[SamplingOptions]:
    """The options of each of `count` prompts.

    Args:
        count: prompts.
        options: for all prompts, or one for each, or the defaults.
        changes: fields that differ from `options` in every prompt. A list as `seed` has one for
            each prompt; one seed for all means seed + i for prompt i, so that equal prompts differ.

    Raises:
        InputError: a wrong number of options or seeds, or an option that means nothing.
    """
    changes = dict(changes)
    seeds = changes.pop("seed", None)
    if isinstance(options, Sequence):
        _check_number("options", len(options), count)
        rows = [row.replace(**changes) for row in options]
        if seeds is None:
            return rows
    else:
        one = (options or SamplingOptions()).replace(**changes)
        rows = [one] * count
        seeds = one.seed if seeds is None else seeds
    if isinstance(seeds, Sequence) and not isinstance(seeds, str | bytes):
        _check_number("seed", len(seeds), count)
        return [row.replace(seed=seed) for row, seed in zip(rows, seeds, strict=True)]
    first = SamplingOptions(seed=seeds).seed
    return [row.replace(seed=(first + i) % (LARGEST_SEED + 1)) for i, row in enumerate(rows)]


def too_long(config: HybridConfig, max_tokens: int, num_prompt: int = 1) -> InputError:
    """The error of a prompt and new tokens that exceed the model's context."""
    return InputError(
        f"prompt and max_tokens must fit in the model's {config.max_position_embeddings:,} tokens, "
        f"got {num_prompt:,} + {max_tokens:,}; shorten one of them."
    )


def is_integer(value: object) -> TypeGuard[int]:
    """Whether `value` counts: an integer of any library, but no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a real number, but no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    return is_number(value) and abs(value) <= sys.float_info.max


def _check_count(name: str, value: object, least: int, advice: str = "") -> None:
    if not is_integer(value) or value < least:
        raise InputError(f"{name} must be at least {least} and an integer, got {value!r}{advice}.")


def _check_number(name: str, got: int, count: int) -> None:
    if got != count:
        raise InputError(f"{name} must be one for all prompts or one each, got {got} for {count}.")


def _as_bias(value: Any) -> tuple[tuple[int, float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    try:
        found = sorted((token, bias) for token, bias in pairs)
    except (TypeError, ValueError):
        raise InputError(f"logit_bias must map ids to numbers, got {value!r}.") from None
    for token, bias in found:
        if not is_integer(token) or not _is_finite(bias):
            raise InputError(f"logit_bias must map ids to finite numbers, got {token!r}: {bias!r}.")
    if len({token for token, _ in found}) != len(found):
        raise InputError("logit_bias must name each id once; join the numbers of an id.")
    return tuple((int(token), float(bias)) for token, bias in found)


def _as_stop(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"stop must be a string or a list of strings, got {value!r}.")
    if len(texts) == 0 or not all(texts):
        raise InputError(
            f"stop must have at least one string and no empty one, got {value!r}; "
            "leave it out to stop nowhere."
        )
    return tuple(texts)


def _as_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or not all(is_integer(token) for token in value):
        raise InputError(f"stop_tokens must be a list of token ids, got {value!r}.")
    return tuple(int(token) for token in value)

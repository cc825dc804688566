"""Models for lm-evaluation-harness, through its `LM` interface.

    from interlace.generation.harness import HarnessLM
    lm_eval.simple_evaluate(model=HarnessLM(interlace.load("default")), tasks=[...])

Texts are scored and continued in batches. A context and what follows it are joined and then turned
into ids, as the harness asks for: spaces at the end of a context belong to what follows.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from interlace.errors import InputError, MissingExtra
from interlace.generation.engine import stream_batch
from interlace.generation.options import SamplingOptions
from interlace.generation.prompts import tokenizer_of
from interlace.generation.scoring import loglikelihood
from interlace.models import HybridLM

try:
    from lm_eval.api.model import LM
except ImportError:
    raise MissingExtra("the adapter for lm-evaluation-harness", "lm_eval", "lm-eval") from None

__all__ = ["HarnessLM"]

_NEW_TOKENS = 256
# what tasks say of generation; the names on the right are ours
_OPTIONS = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
_KNOWN = {"until", "max_gen_toks", "max_new_tokens", "do_sample", *_OPTIONS}


class HarnessLM(LM):  # type: ignore[misc]
    """A model as the harness sees it.

    Args:
        lm: the model, with a tokenizer or a vocabulary of bytes.
        batch_size: rows at a time; what fits by default.

    Raises:
        InputError: a model that reads no text.
    """

    def __init__(self, lm: HybridLM, batch_size: int | None = None) -> None:
        super().__init__()
        if tokenizer_of(lm) is None:
            raise InputError("the harness gives text, and this model has none: set lm.tokenizer.")
        self._lm = lm
        self._batch_size = batch_size

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Of each (context, text): its log-probability, and whether it is the greedy one."""
        pairs = [_moved_spaces(*request.args) for request in requests]
        scores = loglikelihood(
            self._lm,
            [text for _, text in pairs],
            context=[context for context, _ in pairs],
            batch_size=self._batch_size,
        )
        return [(score.logprob, score.greedy) for score in scores]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """The log-probability of each text from an empty context."""
        texts = [request.args[0] for request in requests]
        scores = loglikelihood(self._lm, texts, batch_size=self._batch_size)
        return [score.logprob for score in scores]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Continue each context until one of its stop strings, or as many tokens as it allows."""
        batch = stream_batch(
            self._lm,
            [request.args[0] for request in requests],
            options=[_options_of(request.args[1]) for request in requests],
            batch_size=self._batch_size,
        )
        for _ in batch:
            pass
        return batch.texts


def _moved_spaces(context: str, text: str) -> tuple[str, str]:
    kept = context.rstrip()
    return (kept, context[len(kept) :] + text) if kept else (context, text)


def _options_of(asked: Mapping[str, Any]) -> SamplingOptions:
    unknown = sorted(asked.keys() - _KNOWN)
    if unknown:
        raise InputError(
            f"generation_kwargs must be of {', '.join(sorted(_KNOWN))}, got {', '.join(unknown)}."
        )
    until = asked.get("until") or None
    sampled = {ours: asked[name] for name, ours in _OPTIONS.items() if name in asked}
    if not asked.get("do_sample", sampled.get("temperature", 0) > 0):
        sampled = {}
    elif "temperature" not in sampled:
        sampled["temperature"] = 1.0
    count = asked.get("max_gen_toks", asked.get("max_new_tokens", _NEW_TOKENS))
    return SamplingOptions(max_tokens=count, stop=until, **sampled)

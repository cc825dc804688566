"""One prompt of a batch and what has been made of it: ids, text, why it ended, and its numbers."""

from collections.abc import Sequence

import torch

from interlace.config import HybridConfig
from interlace.generation.options import SamplingOptions
from interlace.generation.sampling import Sampler, TokenLogprob, token_logprob
from interlace.generation.stopping import Transcript
from interlace.shapes import Bool, Float, Tensor
from interlace.text import Tokenizer

__all__ = ["Row"]


class Row:
    """A prompt, and its generation token by token.

    Args:
        prompt: ids, checked.
        options: how it goes on.
        config: of the model.
        tokenizer: turns tokens into text; without one there is no text.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        options: SamplingOptions,
        config: HybridConfig,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.prompt = prompt
        self.options = options
        self.new: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.stopped_by: int | str | None = None
        self.fed = 0
        """Tokens that the cache holds of this row."""
        self.prefill_seconds = 0.0
        self.decode_seconds = 0.0
        self._tokenizer = tokenizer
        self._transcript = Transcript(options.stop_strings)
        self._ends = _ends(config, tokenizer, options)
        banned = _banned(config, tokenizer, options, self._ends)
        self._sampler = Sampler(options, banned, prompt)

    @property
    def done(self) -> bool:
        """Nothing more will be made."""
        return self.finish_reason is not None

    @property
    def text(self) -> str:
        """The new text so far, without what is held back."""
        return self._transcript.text

    def accept(self, logits: Float[Tensor, "vocab"]) -> str:
        """Take the next token; return the text that it settles, which may be empty."""
        token = self._sampler.pick(logits)
        self.new.append(token)
        if self.options.logprobs is not None:
            self.logprobs.append(token_logprob(logits, token, self.options.logprobs))
        if token in self._ends:
            return self.finish("stop", token)
        piece = ""
        if self._tokenizer is not None:
            piece = self._transcript.feed(self._tokenizer.decode([token]))
        if self._transcript.match is not None or len(self.new) == self.options.max_tokens:
            piece += self.finish("length")
        return piece

    def finish(self, reason: str, stopped_by: int | None = None) -> str:
        """End the row; return the text that was held back and belongs to it.

        A stop string that is found there is the reason, since it stands before everything else.
        """
        tail = self._transcript.flush()
        if self._transcript.match is not None:
            self.finish_reason, self.stopped_by = "stop", self._transcript.match
        else:
            self.finish_reason, self.stopped_by = reason, stopped_by
        return tail


def _ends(
    config: HybridConfig, tokenizer: Tokenizer | None, options: SamplingOptions
) -> frozenset[int]:
    """The ids that end the text."""
    own: Sequence[int | None] = (config.eos_token_id,) if tokenizer is None else tokenizer.stop
    kept = () if options.ignore_eos else [token for token in own if token is not None]
    return frozenset({*kept, *options.stop_tokens})


def _banned(
    config: HybridConfig,
    tokenizer: Tokenizer | None,
    options: SamplingOptions,
    ends: frozenset[int],
) -> Bool[Tensor, "vocab"] | None:
    """Which ids are never drawn: those without text, and the end marks when they are ignored."""
    if tokenizer is not None:
        ids = {
            *tokenizer.silent(keep_eos=not options.ignore_eos),
            *range(tokenizer.vocab_size, config.vocab_size),
        }
    else:
        ids = {config.eos_token_id} if options.ignore_eos else set()
    ids = {token for token in ids if token is not None and token < config.vocab_size} - ends
    if not ids:
        return None
    banned = torch.zeros(config.vocab_size, dtype=torch.bool)
    banned[sorted(ids)] = True
    return banned

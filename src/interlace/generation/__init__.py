"""Generation: tokens in, tokens out: prefill in chunks, decode, sampling, stopping, scoring."""

from interlace.generation.engine import generate as generate
from interlace.generation.engine import stream as stream
from interlace.generation.engine import stream_batch as stream_batch
from interlace.generation.options import SamplingOptions as SamplingOptions
from interlace.generation.prompt_cache import PromptCache as PromptCache
from interlace.generation.result import GenerationResult as GenerationResult
from interlace.generation.sampling import Sampler as Sampler
from interlace.generation.sampling import TokenLogprob as TokenLogprob
from interlace.generation.scoring import Score as Score
from interlace.generation.scoring import loglikelihood as loglikelihood
from interlace.generation.streams import BatchStream as BatchStream
from interlace.generation.streams import TextStream as TextStream

__all__ = [
    "BatchStream",
    "GenerationResult",
    "PromptCache",
    "Sampler",
    "SamplingOptions",
    "Score",
    "TextStream",
    "TokenLogprob",
    "generate",
    "loglikelihood",
    "stream",
    "stream_batch",
]

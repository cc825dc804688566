"""Generation: tokens in, tokens out: prefill in chunks, decode, sampling, stopping."""

from interlace.generation.engine import TextStream as TextStream
from interlace.generation.engine import generate as generate
from interlace.generation.engine import stream as stream
from interlace.generation.prompt_cache import PromptCache as PromptCache
from interlace.generation.result import GenerationResult as GenerationResult
from interlace.generation.sampling import Sampler as Sampler

__all__ = ["GenerationResult", "PromptCache", "Sampler", "TextStream", "generate", "stream"]

"""The stack of layers, and how to make one from a preset or a config."""

from interlace.models.build import build as build
from interlace.models.build import init_weights as init_weights
from interlace.models.hybrid import HybridLM as HybridLM
from interlace.models.identity import load_cache as load_cache

__all__ = ["HybridLM", "build", "init_weights", "load_cache"]

"""Language models that interlace linear attention with global attention.

`import interlace` loads nothing heavy: each name below arrives when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "HybridConfig": "interlace.config",
    "HybridLM": "interlace.models",
    "build": "interlace.models",
    "generate": "interlace.generation",
    "load": "interlace.checkpoints.reader",
    "load_cache": "interlace.models",
    "loglikelihood": "interlace.generation",
    "plan": "interlace.planner",
    "save": "interlace.checkpoints.writer",
    "stream": "interlace.generation",
}

__all__ = [
    "HybridConfig",
    "HybridLM",
    "__version__",
    "build",
    "generate",
    "load",
    "load_cache",
    "loglikelihood",
    "plan",
    "save",
    "stream",
]

if TYPE_CHECKING:
    from interlace.checkpoints.reader import load as load
    from interlace.checkpoints.writer import save as save
    from interlace.config import HybridConfig as HybridConfig
    from interlace.generation import generate as generate
    from interlace.generation import loglikelihood as loglikelihood
    from interlace.generation import stream as stream
    from interlace.models import HybridLM as HybridLM
    from interlace.models import build as build
    from interlace.models import load_cache as load_cache
    from interlace.planner import plan as plan


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'interlace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

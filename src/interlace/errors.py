"""What can go wrong, as one tree.

    InterlaceError
    |-- ConfigError         (ValueError)    a config that is missing, contradictory or unknown
    |-- CheckpointError     (ValueError)    a file or tensor that is missing, truncated, mis-shaped
    |-- ShapeError          (ValueError)    tensors whose shapes do not fit together
    |-- InputError          (ValueError)    a prompt, token, option or recipe that cannot be used
    |-- CacheError          (ValueError)    a cache that does not belong to this call
    |-- MemoryLimitError    (RuntimeError)  the machine has too little memory for what was asked
    |-- NonFiniteError      (RuntimeError)  a training step met a tensor that is not finite
    |-- BackendUnavailable  (RuntimeError)  a kernel asked for by name cannot take this call
    `-- MissingExtra        (ImportError)   an optional package that this needs is not installed

Every message says what must hold, what came, and what to do. The command line turns any of them
into one sentence on standard error and exit status 2 (1 for `NonFiniteError`: the run started and
failed).
"""

__all__ = [
    "BackendUnavailable",
    "CacheError",
    "CheckpointError",
    "ConfigError",
    "InputError",
    "InterlaceError",
    "MemoryLimitError",
    "MissingExtra",
    "NonFiniteError",
    "ShapeError",
]


class InterlaceError(Exception):
    """Base of everything that Interlace raises for a reason a user can act on."""


class ConfigError(InterlaceError, ValueError):
    """A configuration that is missing, contradictory or unknown in a field that matters."""


class CheckpointError(InterlaceError, ValueError):
    """A checkpoint file or tensor that is missing, truncated, mis-named or mis-shaped."""


class ShapeError(InterlaceError, ValueError):
    """Tensors whose shapes do not fit together."""


class InputError(InterlaceError, ValueError):
    """A prompt, token, option or recipe that cannot be used."""


class CacheError(InterlaceError, ValueError):
    """A cache that does not belong to the model or the batch of this call."""


class MemoryLimitError(InterlaceError, RuntimeError):
    """The machine has too little memory for what was asked."""


class NonFiniteError(InterlaceError, RuntimeError):
    """A training step met a tensor that is not finite."""


class BackendUnavailable(InterlaceError, RuntimeError):
    """A kernel asked for by name cannot take this call."""


class MissingExtra(InterlaceError, ImportError):
    """An optional package that is needed here is not installed.

    Args:
        purpose: what needs it, as the subject of the sentence.
        package: its name on the package index.
        extra: the extra of this package that brings it.
    """

    def __init__(self, purpose: str, package: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed; install it with: "
            f"pip install 'interlace[{extra}]'."
        )

"""What a check takes of memory and disk, said before any work.

The reference widens one slice of a matrix at a time and works through the layers one after the
other, so a model is never held in float64: a check needs what running the model needs, a second
copy while the saved model is loaded, and the results in float64.
"""

import shutil
import tempfile
from collections.abc import Sequence

from interlace.check.reference import SLICE
from interlace.config import HybridConfig, sizes
from interlace.config.activations import prefill_activation_bytes
from interlace.errors import InputError
from interlace.generation import memory

__all__ = ["check_bytes", "require_disk", "require_memory"]

_F64 = 8
# streams of the three references; their logits, those judged, and what comparing them makes
_STREAMS = 3
_LOGITS = 7
# widened at a time: one of a matrix and its product, and packed experts of three kinds
_SLICES = 5


def check_bytes(
    config: HybridConfig, lengths: Sequence[int], dtype: str, saved: bool = True
) -> dict[str, int]:
    """Bytes of a check, part by part.

    Args:
        config: the model.
        lengths: tokens of each row.
        dtype: of the weights.
        saved: whether the model is saved and loaded.
    """
    longest, total = max(lengths), sum(lengths)
    weights = sizes.weight_bytes(config, dtype)
    heads = max(config.num_attention_heads, 1)
    per_token = _STREAMS * config.num_hidden_layers * config.hidden_size
    per_token += _LOGITS * config.vocab_size
    working = prefill_activation_bytes(
        config, len(lengths), longest, longest, dtype, last_only=False
    )
    return {
        "weights": weights,
        **({"a copy of them, saved and loaded": weights} if saved else {}),
        "results in float64": _F64 * total * per_token,
        "the reference at work": _F64 * (_SLICES * SLICE + 3 * heads * longest**2),
        "caches and activations": working + sizes.cache_bytes(config, len(lengths), longest, dtype),
    }


def require_memory(
    config: HybridConfig, lengths: Sequence[int], dtype: str, saved: bool = True
) -> None:
    """Refuse a check that does not fit.

    Raises:
        MemoryLimitError: with what is needed, part by part, and what there is.
    """
    memory.require(
        check_bytes(config, lengths, dtype, saved),
        memory.available(),
        f"a check in {dtype} over {sum(lengths):,} tokens",
        "take fewer --tokens, leave out saving with --no-save, or take a machine with more",
    )


def require_disk(config: HybridConfig, dtype: str) -> None:
    """Refuse to save a model where the folder for temporary files has too little room.

    Raises:
        InputError: with what is needed and what there is.
    """
    needed = sizes.checkpoint_bytes(config.replace(dtype=dtype))
    with tempfile.TemporaryDirectory(prefix="interlace-check-") as folder:
        free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"saving the model to compare it needs {sizes.describe_bytes(needed)} of disk, but the "
            f"folder for temporary files has {sizes.describe_bytes(free)}; set TMPDIR to another, "
            "or leave it out with --no-save."
        )

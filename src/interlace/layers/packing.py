"""What a mixer refuses before it starts: boundaries of packed sequences beside a cache.

A cache holds one sequence per row, packed rows hold several: one of the two would have to be
dropped in silence.
"""

from interlace.errors import InputError
from interlace.shapes import Tensor

__all__ = ["refuse_packed_cache"]


def refuse_packed_cache(cache: object, cu_seqlens: Tensor | None) -> None:
    """Refuse `cu_seqlens` where there is a cache.

    Raises:
        InputError: both were given.
    """
    if cache is not None and cu_seqlens is not None:
        raise InputError(
            "cu_seqlens must not be given with a cache, which holds one sequence per row; got "
            "both; pack without a cache, or pad the rows and pass lengths."
        )

"""Shape checks of both kinds of call, and packed offsets as the first visible key of each token."""

from itertools import pairwise

import torch

from interlace.errors import ShapeError
from interlace.ops.delta_rule.packing import read_offsets
from interlace.shapes import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64; everything else is softmaxed and summed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_expanded(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, cu_seqlens: Tensor | None
) -> None:
    """Refuse q, k, v that do not fit together.

    Raises:
        ShapeError: naming the argument, the shape it must have and the shape that came.
    """
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise ShapeError(
            f"q, k and v must be [B, T, H, N+P], [B, M, H, N+P] and [B, M, H, V]; got "
            f"{list(q.shape)}, {list(k.shape)} and {list(v.shape)}; give every head its own axis"
        )
    batch, tokens, heads, width = q.shape
    memory = k.shape[1]
    for name, x, shape in (
        ("k", k, [batch, memory, heads, width]),
        ("v", v, [batch, memory, heads, v.shape[-1]]),
    ):
        if list(x.shape) != shape:
            raise ShapeError(
                f"{name} must be {shape} to fit q {list(q.shape)}; got {list(x.shape)}; repeat or "
                f"reshape {name} before the call"
            )
    if memory < tokens:
        raise ShapeError(
            f"k must hold the keys of the {tokens} queries too; got {memory} keys; append before "
            "attending"
        )
    if lengths is not None and cu_seqlens is not None:
        raise ShapeError(
            "lengths and cu_seqlens must not be given together: they would place boundaries twice; "
            "pass only one of them"
        )
    if (lengths is not None or cu_seqlens is not None) and memory != tokens:
        raise ShapeError(
            f"lengths and cu_seqlens need as many keys as queries; got {memory} keys for {tokens} "
            "queries; attend against a latent cache for rows with a past"
        )
    if lengths is not None and list(lengths.shape) != [batch]:
        raise ShapeError(
            f"lengths must be [{batch}], one per row of q; got {list(lengths.shape)}; pass one "
            "number per row"
        )


def check_latent(
    q: Tensor, latent: Tensor, w_uk: Tensor, w_uv: Tensor, lengths: Tensor | None
) -> None:
    """Refuse a query, latent and up-projections that do not fit together.

    Raises:
        ShapeError: naming the argument, the shape it must have and the shape that came.
    """
    if q.ndim != 4 or latent.ndim != 3 or w_uk.ndim != 3 or w_uv.ndim != 3:
        raise ShapeError(
            "q, latent, w_uk, w_uv must be [B, T, H, N+P], [B, M, R+P], [H, N, R], [H, V, R]; "
            f"got {list(q.shape)}, {list(latent.shape)}, {list(w_uk.shape)} and "
            f"{list(w_uv.shape)}; split kv_b_proj per head first"
        )
    batch, _, heads, width = q.shape
    nope, rank = w_uk.shape[1], w_uk.shape[2]
    shared = width - nope
    for name, x, shape in (
        ("latent", latent, [batch, latent.shape[1], rank + shared]),
        ("w_uk", w_uk, [heads, nope, rank]),
        ("w_uv", w_uv, [heads, w_uv.shape[1], rank]),
    ):
        if list(x.shape) != shape or shared < 0:
            raise ShapeError(
                f"{name} must be {shape} to fit q {list(q.shape)} and w_uk {list(w_uk.shape)}; got "
                f"{list(x.shape)}; give the latent after its norm, then the shared key"
            )
    if lengths is not None and list(lengths.shape) != [batch]:
        raise ShapeError(
            f"lengths must be [{batch}], one per row of q; got {list(lengths.shape)}; pass one "
            "number per row"
        )


def segment_starts(cu_seqlens: Tensor, batch: int, tokens: int) -> list[list[int]]:
    """For each token of each row, the position in the row where its segment begins.

    Offsets [0, 2, 3, 6] over two rows of three tokens give [[0, 0, 2], [0, 0, 0]].

    Raises:
        ShapeError: when the offsets do not cut the rows as they must.
    """
    offsets = read_offsets(cu_seqlens, batch, tokens)
    flat = [begin % tokens for begin, end in pairwise(offsets) for _ in range(end - begin)]
    return [flat[b * tokens : (b + 1) * tokens] for b in range(batch)]


def row_lengths(lengths: Tensor | None, batch: int, memory: int) -> list[int]:
    """Valid latents of each row as integers, cut to the latents that are there: all when None."""
    if lengths is None:
        return [memory] * batch
    return [min(int(n), memory) for n in lengths.tolist()]

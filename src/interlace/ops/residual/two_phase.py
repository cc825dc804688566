"""Attention Residuals in two phases: the bank is scored once per block, the live stream per read.

    once per block     bank [slots] x reads -> scores -> softmax within the bank, log of its sum
    once per read      live -> score s;  share = sigmoid(s - log sum);  lerp(bank's mixture, live)

The second line is the merge of two partial softmaxes (README). Sublayers of a block ask the same
bank with different queries, so their scores are one product; the mixtures are formed read by read,
because keeping them would take as many streams as a block has reads.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from interlace.errors import ShapeError
from interlace.shapes import Float, Tensor

__all__ = ["BankReads", "Candidate", "fold_live", "make_candidate", "read_bank"]


class Candidate(NamedTuple):
    """A stream that reads may choose from.

    Args:
        value: the stream `[*rows, D]` as it is, in float32 or wider.
        scale: inverse root of the mean of its squares, per row.
    """

    value: Tensor
    scale: Tensor


class BankReads(NamedTuple):
    """What one read takes from the bank, before the live stream is known.

    Args:
        query: norm times projection `[D]`.
        shares: of each slot within the bank `[slots, *rows]`; they add up to 1.
        log_sum: log of the sum of the exponentials of the scores `[*rows]`.
    """

    query: Tensor
    shares: Tensor
    log_sum: Tensor


def make_candidate(x: Float[Tensor, "*rows D"], eps: float) -> Candidate:
    """`x` and the scale by which it is compared; nothing of `x` is copied where it is float32.

    Args:
        x: a stream, any float dtype.
        eps: added to the mean of the squares, inside the root.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    size = torch.linalg.vector_norm(wide, dim=-1)
    return Candidate(wide, torch.rsqrt(size.square() / x.shape[-1] + eps))


def read_bank(
    bank: Sequence[Candidate], queries: Float[Tensor, "reads D"]
) -> tuple[BankReads, ...]:
    """The first phase: every query of a block against every slot of the bank.

    Args:
        bank: finished block streams, oldest first; at least one.
        queries: norm times projection of each read, in the dtype of the candidates.

    Returns:
        One record per query, in order.

    Raises:
        ShapeError: an empty bank, or queries of another width.
    """
    if not bank or queries.ndim != 2 or queries.shape[1] != bank[0].value.shape[-1]:
        width = bank[0].value.shape[-1] if bank else "D"
        raise ShapeError(
            f"queries must be [reads, {width}] for a bank of at least one stream, got "
            f"{tuple(queries.shape)} and {len(bank)} streams; bank the embedding first"
        )
    scores = torch.stack([(slot.value @ queries.mT) * slot.scale[..., None] for slot in bank])
    shares = scores.softmax(0)  # [slots, *rows, reads]
    log_sums = scores.logsumexp(0)
    return tuple(map(BankReads, queries, shares.unbind(-1), log_sums.unbind(-1)))


def fold_live(
    read: BankReads, bank: Sequence[Candidate], live: Float[Tensor, "*rows D"], eps: float
) -> Float[Tensor, "*rows D"]:
    """The second phase: the mixture of the bank and of the live stream for one read.

    Args:
        read: from `read_bank` of the same bank.
        bank: the same streams.
        live: the stream of the block at work.
        eps: as in `make_candidate`.

    Returns:
        Dtype of `live`. Nothing given is changed, and the result shares no memory with it.
    """
    value, scale = make_candidate(live, eps)
    share = torch.sigmoid((value @ read.query) * scale - read.log_sum)
    mixed = read.shares[0][..., None] * bank[0].value
    for weight, slot in zip(read.shares[1:], bank[1:], strict=True):
        # in place on a sum of our own: autograd keeps the factors and never the sum
        mixed = mixed.addcmul_(weight[..., None], slot.value)
    return torch.lerp(mixed, value, share[..., None]).to(live.dtype)

"""Bits per byte on held-out text, every file started with an empty context.

The figure is total bits over total bytes. `bits_per_byte` reads whole files through the model's
cache; `EvalSubset` holds the openings of all files, for the evaluations inside a run.
"""

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from interlace.models import HybridLM
from interlace.shapes import Tensor
from interlace.training.data import BOS

__all__ = ["EvalSubset", "bits_per_byte"]


class EvalSubset:
    """The first bytes of every document: `total_bytes` shared out evenly, at most `length` of each.

    Rows are padded on the right; padding sees no loss, and what stands before it does not see it.
    """

    def __init__(
        self, documents: Sequence[bytes], total_bytes: int, length: int, bos: int = BOS
    ) -> None:
        share = max(1, min(length, total_bytes // max(1, len(documents))))
        self.rows = [torch.tensor([bos, *text[:share]]) for text in documents if text]
        self.bytes = sum(len(row) - 1 for row in self.rows)

    @torch.no_grad()
    def bits_per_byte(self, lm: HybridLM, rows: int = 8) -> float:
        """Evaluate `lm`, `rows` documents at a time."""
        nats = 0.0
        for first in range(0, len(self.rows), rows):
            part = self.rows[first : first + rows]
            padded = torch.nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=-1)
            tokens, targets = padded[:, :-1].clamp(min=0), padded[:, 1:]
            nats += _nats(lm(tokens), targets)
        return nats / math.log(2) / max(1, self.bytes)


@torch.no_grad()
def bits_per_byte(
    lm: HybridLM, documents: Sequence[bytes], *, chunk: int = 1024, bos: int = BOS
) -> float:
    """Bits per byte of whole documents, each from an empty context.

    Args:
        lm: the model.
        documents: read to their end, `chunk` tokens at a time through a cache.
        chunk: tokens per call.
        bos: id in front of each document.
    """
    nats, count = 0.0, 0
    for text in documents:
        row = torch.tensor([[bos, *text]])
        cache = lm.new_cache(1, capacity=row.shape[1])
        for start in range(0, row.shape[1] - 1, chunk):
            tokens = row[:, start : min(start + chunk, row.shape[1] - 1)]
            targets = row[:, start + 1 : start + 1 + tokens.shape[1]]
            nats += _nats(lm(tokens, cache=cache), targets)
        count += len(text)
    return nats / math.log(2) / max(1, count)


def _nats(logits: Tensor, targets: Tensor) -> float:
    loss = functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum"
    )
    return float(loss)

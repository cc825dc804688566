"""Attention Residuals as a strategy: what a sublayer reads, and where its output goes.

    plain (Block)            reads x                  x <- x + output
    AttentionResidualBlock   reads a mixture of       live <- live + output
                             (bank, live)             every block: bank <- bank, live;  live <- 0

The streams of a stack travel from layer to layer as one immutable value, so that a layer can be run
twice and no stream is written over while another still reads it. Every read has a query of its own,
the product of a norm's weight and a projection's, and lies on the layer under the published names.
Derivation and the two phases: `interlace.ops.residual`; spec section 6.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from interlace.config import HybridConfig
from interlace.layers.block import Block
from interlace.layers.norm import RMSNorm
from interlace.ops.residual import (
    BankReads,
    Candidate,
    attention_residual_reference,
    fold_live,
    make_candidate,
    read_bank,
)
from interlace.shapes import Float, Tensor

__all__ = ["AttentionResidualBlock", "BlockStreams", "FullStreams", "ResidualProjection", "queries"]


class ResidualProjection(nn.Module):
    """The weight `[1, D]` of a read's projection.

    It starts at zero, where every candidate has the same share: the release does not say how it
    started (spec section 12), and a mean over depth favours none.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width))

    def extra_repr(self) -> str:
        """Size, for `print(model)`."""
        return str(self.weight.shape[1])


@dataclass(frozen=True, slots=True)
class BlockStreams:
    """The block form: finished blocks in a bank, the block at work as one live stream.

    Args:
        x: what the next sublayer reads.
        live: sum of the outputs since the last banking; None right after it.
        bank: the embedding and the finished blocks, raw.
        reads: what each further read of this block takes from the bank.
        eps: of the norms that score.
    """

    x: Tensor
    live: Tensor | None
    bank: tuple[Candidate, ...]
    reads: tuple[BankReads, ...]
    eps: float

    @classmethod
    def start(cls, x: Tensor, eps: float) -> "BlockStreams":
        """Before the first layer: the embedding is the live stream, and it is read as it is."""
        return cls(x=x, live=x, bank=(), reads=(), eps=eps)

    def open(self, queries: Float[Tensor, "reads D"]) -> "BlockStreams":
        """Bank the raw live stream and score the bank for every read of the block that begins.

        `x` stays: the first attention of the block reads what was mixed before the banking.
        """
        assert self.live is not None
        bank = (*self.bank, make_candidate(self.live, self.eps))
        reads = read_bank(bank, queries.to(bank[0].value.dtype))
        return replace(self, live=None, bank=bank, reads=reads)

    def add(self, y: Tensor) -> "BlockStreams":
        """Take a sublayer's output into the live stream and mix what the next sublayer reads."""
        live = y.to(self.x.dtype) if self.live is None else self.live + y
        read, *left = self.reads
        x = fold_live(read, self.bank, live, self.eps)
        return replace(self, x=x, live=live, reads=tuple(left))


@dataclass(frozen=True, slots=True)
class FullStreams:
    """The full form, for comparison: every output is a candidate by itself; nothing is summed.

    Args:
        x: what the next sublayer reads.
        bank: the embedding and every output so far.
        queries: norm times projection of each further read.
        eps: of the norms that score.
    """

    x: Tensor
    bank: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]
    eps: float

    @classmethod
    def start(cls, x: Tensor, queries: Float[Tensor, "reads D"], eps: float) -> "FullStreams":
        """Before the first layer: the embedding is the only candidate."""
        return cls(x=x, bank=(x,), queries=queries.unbind(0), eps=eps)

    def add(self, y: Tensor) -> "FullStreams":
        """Add an output to the candidates and mix what the next sublayer reads."""
        y = y.to(self.x.dtype)
        query, *left = self.queries
        wide = torch.promote_types(y.dtype, torch.float32)
        ones = torch.ones_like(query)
        x = attention_residual_reference(self.bank, y, ones, query, self.eps, compute_dtype=wide)
        return replace(self, x=x, bank=(*self.bank, y), queries=tuple(left))


class AttentionResidualBlock(Block):
    """A layer whose two sublayers read mixtures of streams.

    Args:
        config: as for `Block`.
        layer_idx: 0-based position in the stack.
    """

    def __init__(self, config: HybridConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        # layer 0 has the first pair too, as published, although its attention has nothing to choose
        self.self_attention_res_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attention_res_proj = ResidualProjection(config.hidden_size)
        self.mlp_res_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp_res_proj = ResidualProjection(config.hidden_size)

    def forward(self, x: Any, **context: Any) -> Any:
        """Apply mixer and feed-forward to `BlockStreams` or `FullStreams`; returns the same."""
        streams = x.add(self.mix(x.x, **context))
        return streams.add(self.feed(streams.x))


def queries(
    layers: Sequence[AttentionResidualBlock], last: tuple[RMSNorm, ResidualProjection]
) -> Float[Tensor, "reads D"]:
    """Norm times projection of every read of a stack in the order of reading, in float32 or wider.

    Read 2i is that of layer i's feed-forward, read 2i - 1 that of its attention; the last is the
    mixture before the final norm. The attention of layer 0 does not read.

    Args:
        layers: all layers.
        last: norm and projection of the mixture before the final norm.
    """
    pairs = [*(pair for layer in layers for pair in _pairs(layer)), last][1:]
    norms = torch.stack([norm.weight for norm, _ in pairs])
    projections = torch.cat([projection.weight for _, projection in pairs])
    wide = torch.promote_types(norms.dtype, torch.float32)
    return norms.to(wide) * projections.to(wide)


def _pairs(layer: AttentionResidualBlock) -> Iterable[tuple[RMSNorm, ResidualProjection]]:
    yield layer.self_attention_res_norm, layer.self_attention_res_proj
    yield layer.mlp_res_norm, layer.mlp_res_proj

"""The hybrid language model: embedding, blocks, final norm, head.

The module tree carries the published names, so `state_dict()` is the published layout but for two
shapes on disk (`A_log`; see `interlace.checkpoints.names`). Values are checked here, at the door:
token ids and the cache that came with them; the layers below trust what they get.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from interlace.caches import HybridCache, ModelIdentity
from interlace.caches.hybrid import DEFAULT_SNAPSHOTS
from interlace.config import HybridConfig
from interlace.errors import CacheError, InputError, ShapeError
from interlace.layers import AttentionResidualBlock, Block, RMSNorm
from interlace.layers.expert_cache import ExpertCache
from interlace.layers.linear import Linear
from interlace.layers.packed import check_quantization
from interlace.layers.precision import at_least_float32
from interlace.layers.residual import BlockStreams, FullStreams, ResidualProjection, queries
from interlace.models.identity import identity
from interlace.models.layouts import Rows, from_left, from_packed, last_tokens
from interlace.shapes import Float, Int, Tensor

__all__ = ["HybridLM"]


class Stack(nn.Module):
    """Everything between token ids and the head."""

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        # not nn.Embedding(...): its start values, on the meta device, import a whole compiler
        rows = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(rows, freeze=False)
        self.block_size, self.eps = config.attn_res_block_size, config.rms_norm_eps
        block = Block if self.block_size is None else AttentionResidualBlock
        self.layers = nn.ModuleList(block(config, i) for i in range(config.num_hidden_layers))
        if self.block_size is not None:
            self.output_attn_res_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
            self.output_attn_res_proj = ResidualProjection(config.hidden_size)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x: Float[Tensor, "B T D"], caches: Sequence[Any], **context: Any
    ) -> Float[Tensor, "B T D"]:
        """What the final norm reads.

        Args:
            x: embedded tokens, in the dtype of the residual stream.
            caches: one per layer, or None for each.
            context: lengths or cu_seqlens, for the mixers.
        """
        if self.block_size is not None:
            return self._mixed(x, self.block_size, caches, **context)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache=cache, **context)
        return x

    def _mixed(self, x: Tensor, size: int, caches: Sequence[Any], **context: Any) -> Tensor:
        """The same with Attention Residuals, in blocks of `size` layers (0: in full form)."""
        last = self.output_attn_res_norm, self.output_attn_res_proj
        reads = queries(list(self.layers), last)  # type: ignore[arg-type]
        streams: Any = (
            BlockStreams.start(x, self.eps) if size else FullStreams.start(x, reads, self.eps)
        )
        for i, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            if size and i % size == 0:
                # its own two reads but the first, those of the block, and the first of the next
                streams = streams.open(reads[2 * i : 2 * (i + size)])
            streams = layer(streams, cache=cache, **context)
        out: Tensor = streams.x
        return out


class HybridLM(nn.Module):
    """A language model of KDA and Gated MLA layers.

    Weights are left as PyTorch allocates them: `interlace.build` draws and `interlace.load` reads.

    Args:
        config: the architecture. Experts that it packs stay packed in memory.

    Raises:
        ConfigError: weights quantised in another way than K3's experts.
    """

    def __init__(self, config: HybridConfig) -> None:
        super().__init__()
        check_quantization(config)
        self.config = config
        self.model = Stack(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.tokenizer: Any = None
        # of a model whose packed experts stay on disk; its layers share it
        self.expert_cache: ExpertCache | None = None
        # float32 while training in bfloat16: many small additions must not be rounded away
        self.residual_dtype: torch.dtype | None = None

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        cache: HybridCache | None = None,
        lengths: Int[Tensor, "B"] | list[int] | None = None,
        cu_seqlens: Int[Tensor, "offsets"] | list[int] | None = None,
        padding: str = "right",
        last_only: bool = False,
    ) -> Float[Tensor, "rows T_out vocab"]:
        """Logits of the next token after each token.

        Args:
            tokens: ids, of any integer dtype.
            cache: what the model remembers of the tokens before; it is advanced. Any split of a
                sequence into calls gives the same logits.
            lengths: real tokens of each padded row, 0 for one that takes no part in this call;
                logits of padding mean nothing. A row of a cache may begin in any call.
            cu_seqlens: offsets of packed documents in the rows laid end to end, from 0 to B*T;
                every row start is one. No document sees another. With a cache each document is a
                row of the cache. Not together with `lengths`.
            padding: "right" or "left": on which side of its row the padding stands.
            last_only: only the logits after the last (real) token of each row, or of each document
                of a packed call.

        Returns:
            float32 (float64 in a float64 model) `[B, T, vocab]`; when `last_only` `[B, 1, vocab]`,
            or `[S, 1, vocab]` for S packed documents.

        Raises:
            InputError: an id out of range, numbers that are not integers, an empty call, or
                arguments that exclude each other.
            ShapeError: lengths or offsets that do not fit the tokens.
            CacheError: a cache of another model or batch.
        """
        tokens = self._checked_tokens(tokens)
        row_lengths = self._check_lengths(lengths, tokens)
        offsets = self._check_offsets(cu_seqlens, tokens)
        if offsets is not None and row_lengths is not None:
            raise InputError("cu_seqlens cannot be combined with lengths: pack or pad, not both.")
        if padding not in ("right", "left"):
            raise InputError(f'padding must be "right" or "left", got {padding!r}.')
        rows = Rows(tokens, row_lengths, None, (tokens.shape[0], tokens.shape[1]))
        if offsets is not None and cache is not None:
            rows, offsets = from_packed(tokens, offsets), None
        elif padding == "left" and row_lengths is not None:
            rows = from_left(tokens, row_lengths)
        caches: list[Any] = [None] * self.config.num_hidden_layers
        if cache is not None:
            if not isinstance(cache, HybridCache):
                raise CacheError(
                    f"cache must come from lm.new_cache(batch), got {type(cache).__name__}."
                )
            cache.begin(self.config, rows.tokens.shape[0], tokens.device)
            caches = list(cache.layers)
        x = self.model.embed_tokens(rows.tokens)  # [B, T, D]
        if self.residual_dtype is not None:
            x = x.to(self.residual_dtype)
        x = self.model(x, caches, lengths=rows.lengths, cu_seqlens=offsets)
        if cache is not None:
            cache.advance(rows.tokens.shape[1], rows.lengths)
        x = last_tokens(x, rows.lengths, offsets) if last_only else rows.restore(x)
        logits: Tensor = self.lm_head(self.model.norm(x))
        return at_least_float32(logits)

    def new_cache(
        self,
        batch: int = 1,
        *,
        capacity: int = 0,
        dtype: torch.dtype | None = None,
        max_snapshots: int = DEFAULT_SNAPSHOTS,
    ) -> HybridCache:
        """An empty cache for `batch` rows.

        Args:
            batch: rows.
            capacity: tokens to reserve in every global layer; 0 grows as needed.
            dtype: of the latents and convolution windows; the weights' dtype by default. The delta
                state is float32 always.
            max_snapshots: how many `cache.snapshot()` keeps at most.
        """
        weight = self.lm_head.weight
        return HybridCache(
            self.config,
            batch,
            dtype=dtype or weight.dtype,
            device=weight.device,
            capacity=capacity,
            max_snapshots=max_snapshots,
            identity=_identity_of(weakref.ref(self)),
        )

    def _checked_tokens(self, tokens: Tensor) -> Tensor:
        device = self.model.embed_tokens.weight.device
        if not isinstance(tokens, Tensor) or not _integral(tokens) or tokens.device != device:
            came = (
                f"{tokens.dtype} on {tokens.device}"
                if isinstance(tokens, Tensor)
                else type(tokens).__name__
            )
            raise InputError(f"tokens must be a tensor of integers on {device}, got {came}.")
        tokens = tokens.long()
        if tokens.ndim != 2 or tokens.numel() == 0:
            raise InputError(
                f"tokens must be [B, T] with at least one token, got shape {tuple(tokens.shape)}."
            )
        if tokens.is_meta:
            return tokens
        low, high = (int(t) for t in torch.aminmax(tokens))
        if low < 0 or high >= self.config.vocab_size:
            raise InputError(
                f"token ids must lie in 0..{self.config.vocab_size - 1}, "
                f"got {low if low < 0 else high}; "
                "the tokenizer does not belong to this model."
            )
        return tokens

    def _check_lengths(self, lengths: Tensor | list[int] | None, tokens: Tensor) -> Tensor | None:
        if lengths is None:
            return None
        rows = _as_integers("lengths", lengths, tokens.device)
        if rows.shape != tokens.shape[:1]:
            raise ShapeError(
                f"lengths must be [B] = {tokens.shape[0]} numbers, got {tuple(rows.shape)}."
            )
        low, high = (int(t) for t in torch.aminmax(rows))
        if low < 0 or high > tokens.shape[1]:
            raise InputError(
                f"lengths must lie in 0..T = {tokens.shape[1]}, got {low if low < 0 else high}."
            )
        return rows

    def _check_offsets(self, offsets: Tensor | list[int] | None, tokens: Tensor) -> Tensor | None:
        if offsets is None:
            return None
        out = _as_integers("cu_seqlens", offsets, tokens.device)
        values = out.flatten().tolist()
        if out.ndim != 1 or len(values) < 2 or values != sorted(values):
            raise ShapeError(
                f"cu_seqlens must be a list of offsets that never fall, got {values[:8]}."
            )
        if values[0] != 0 or values[-1] != tokens.numel():
            raise ShapeError(
                f"cu_seqlens must run from 0 to B*T = {tokens.numel()}, "
                f"got {values[0]} to {values[-1]}."
            )
        starts = set(values)
        missing = [row for row in range(0, tokens.numel(), tokens.shape[1]) if row not in starts]
        if missing:
            raise ShapeError(
                f"every row must start a sequence: cu_seqlens lacks the offset {missing[0]}."
            )
        return out


def _identity_of(model: "weakref.ref[HybridLM]") -> Callable[[], ModelIdentity]:
    """Who fills a cache, asked when it is saved; the cache does not keep the model alive."""

    def answer() -> ModelIdentity:
        lm = model()
        if lm is None:
            raise CacheError(
                "the model that filled the cache must still be there when it is saved, to name it "
                "in the file, and it is gone; save first."
            )
        return identity(lm)

    return answer


def _integral(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def _as_integers(name: str, value: Tensor | list[int], device: torch.device) -> Tensor:
    """`value` as int64; a fraction is refused, not cut off."""
    try:
        out = torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be a list or tensor of integers: {error}.") from error
    if out.is_meta or (out.numel() and not _integral(out)):
        came = "a tensor without values (meta)" if out.is_meta else str(out.dtype)
        raise InputError(f"{name} must be a list or tensor of integers, got {came}.")
    return out.long()

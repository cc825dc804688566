"""Gated multi-head latent attention without position encoding.

    x -> q_proj, or q_a_proj -> norm -> q_b_proj      -> q [H, N + P]
    x -> kv_a_proj_with_mqa -> latent R (normed), shared key P    <- this is cached, nothing else
    latent -> kv_b_proj -> per head k_nope N, v V;  k = (k_nope, shared key)
    o = softmax(q k^T (N + P)^-1/2) v
    y = o_proj( sigmoid(g_proj(x)) * o )              (the gate of K3; Kimi Linear has none)

Spec section 4; the output is equation (7) of the K3 report. Order and position come from the KDA
layers: nothing is rotated here. With a cache, `kv_b_proj` is folded into the query and the output,
or keys and values are rebuilt block by block when many queries share the cost; they are never
stored.
"""

import torch
from torch import nn

from interlace.caches import LatentCache
from interlace.config import LORA_NORM_EPS, HybridConfig
from interlace.layers.linear import Linear, few, project
from interlace.layers.norm import RMSNorm
from interlace.layers.packing import refuse_packed_cache
from interlace.ops.attention import attention_expanded, latent_attention
from interlace.shapes import Float, Int, Tensor

__all__ = ["GatedMLA"]


class GatedMLA(nn.Module):
    """One Gated MLA mixer.

    Args:
        config: sizes; `q_lora_rank` chooses the query path, `mla_use_output_gate` the gate.
        layer_idx: 0-based position in the stack.
    """

    def __init__(self, config: HybridConfig, layer_idx: int) -> None:
        super().__init__()
        hidden, heads = config.hidden_size, config.num_attention_heads
        self.layer_idx = layer_idx
        self.num_heads = heads
        self.nope_dim, self.shared_dim = config.qk_nope_head_dim, config.qk_rope_head_dim
        self.v_dim, self.latent_rank = config.v_head_dim, config.kv_lora_rank
        query_dim = self.nope_dim + self.shared_dim
        self.q_lora_rank = config.q_lora_rank
        if config.q_lora_rank is None:
            self.q_proj = Linear(hidden, heads * query_dim)
        else:
            self.q_a_proj = Linear(hidden, config.q_lora_rank)
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, LORA_NORM_EPS)
            self.q_b_proj = Linear(config.q_lora_rank, heads * query_dim)
        self.kv_a_proj_with_mqa = Linear(hidden, self.latent_rank + self.shared_dim)
        self.kv_a_layernorm = RMSNorm(self.latent_rank, LORA_NORM_EPS)
        self.kv_b_proj = Linear(self.latent_rank, heads * (self.nope_dim + self.v_dim))
        self.use_output_gate = config.mla_use_output_gate
        if self.use_output_gate:
            self.g_proj = Linear(hidden, heads * self.v_dim)
        self.o_proj = Linear(heads * self.v_dim, hidden)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        cache: LatentCache | None = None,
        lengths: Int[Tensor, "B"] | None = None,
        cu_seqlens: Int[Tensor, "offsets"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Attend causally; appends to `cache` and reads from it when one is given.

        Args:
            x: normed input.
            cache: latents of the tokens before the first of `x`.
            lengths: real tokens of each right-padded row.
            cu_seqlens: offsets of packed sequences in the rows laid end to end; no cache then.

        Raises:
            InputError: both `cache` and `cu_seqlens`.
        """
        refuse_packed_cache(cache, cu_seqlens)
        first = self.q_proj if self.q_lora_rank is None else self.q_a_proj
        gate = None
        if self.use_output_gate and few(x):
            q, latent, gate = project(x, first, self.kv_a_proj_with_mqa, self.g_proj)
        else:
            q, latent = project(x, first, self.kv_a_proj_with_mqa)
        q = self._query(q)  # [B, T, H, N + P]
        latent = self._latent(latent)  # [B, T, R + P]
        if cache is None:
            k, v = self._expand(latent)
            o = attention_expanded(q, k, v, lengths=lengths, cu_seqlens=cu_seqlens)
        else:
            ends = cache.append(latent, lengths=lengths)
            o = latent_attention(q, cache.view(), *self._absorbed_weights(), lengths=ends)
        if self.use_output_gate:
            gate = self.g_proj(x) if gate is None else gate
            # o is float32 (report, section 2.1.2) and stays so through the gate
            o = o * torch.sigmoid(gate).unflatten(-1, (self.num_heads, self.v_dim))
        y: Tensor = self.o_proj(o.flatten(-2).to(x.dtype))
        return y

    def _query(self, q: Tensor) -> Tensor:
        if self.q_lora_rank is not None:
            q = self.q_b_proj(self.q_a_layernorm(q))
        out: Tensor = q.unflatten(-1, (self.num_heads, self.nope_dim + self.shared_dim))
        return out

    def _latent(self, both: Tensor) -> Tensor:
        latent, shared = both.split([self.latent_rank, self.shared_dim], -1)
        return torch.cat([self.kv_a_layernorm(latent), shared], -1)

    def _expand(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        normed, shared = latent.split([self.latent_rank, self.shared_dim], -1)
        # within a head: k_nope, then v (spec section 9, trap 18)
        kv = self.kv_b_proj(normed).unflatten(-1, (self.num_heads, self.nope_dim + self.v_dim))
        k_nope, v = kv.split([self.nope_dim, self.v_dim], -1)  # [B, T, H, N], [B, T, H, V]
        shared = shared.unsqueeze(-2).expand(*k_nope.shape[:-1], self.shared_dim)
        return torch.cat([k_nope, shared], -1), v

    def _absorbed_weights(self) -> tuple[Tensor, Tensor]:
        weight = self.kv_b_proj.weight.unflatten(0, (self.num_heads, self.nope_dim + self.v_dim))
        return weight[:, : self.nope_dim], weight[:, self.nope_dim :]  # [H, N, R], [H, V, R]

"""Kimi Delta Attention: a state of fixed size per head, with one decay per key channel.

    x -> q_proj, k_proj, v_proj -> short convolution, SiLU -> q, k to unit length
    x -> f_a_proj -> f_b_proj   -> decay g per channel     x -> b_proj -> sigmoid -> beta
    S <- (I - beta k k^T) Diag(exp g) S + beta k v^T,  o = S^T q
    y = o_proj( sigmoid(gate(x)) * RMSNorm(o) )

Spec section 5; the recurrence is equation (1) of both reports. The gate here normalises, then
gates; the one of Gated MLA has the same name on disk (`g_proj`) and gates without a norm.
"""

import math
from typing import Any, cast

import torch
from torch import nn

from interlace.caches import DeltaState
from interlace.config import L2_NORM_EPS, HybridConfig
from interlace.layers.linear import Linear, few, project
from interlace.layers.packing import refuse_packed_cache
from interlace.layers.precision import KeepFloat32, at_least_float32
from interlace.layers.step import kda_step
from interlace.ops.conv import short_conv, short_convs
from interlace.ops.delta_rule import kda, kda_gate, kda_gates
from interlace.ops.norm import gated_rms_norm
from interlace.shapes import Float, Int, Tensor

__all__ = ["KimiDeltaAttention", "ShortConvolution"]


class ShortConvolution(KeepFloat32, nn.Module):
    """The weight `[H*K, 1, W]` of a depthwise causal convolution, tap W-1 on the current token.

    With `keep` it is never narrower than float32, whatever the dtype of what it convolves.
    """

    def __init__(self, channels: int, width: int, keep: bool = False) -> None:
        super().__init__()
        self.kept_float32 = ("weight",) if keep else ()
        self.weight = nn.Parameter(torch.empty(channels, 1, width))

    def extra_repr(self) -> str:
        """Sizes, for `print(model)`."""
        return f"{self.weight.shape[0]}, width={self.weight.shape[-1]}"


class KimiDeltaAttention(KeepFloat32, nn.Module):
    """One KDA mixer.

    Args:
        config: sizes; `gate_lower_bound` chooses the decay, `use_full_rank_gate` the output gate.
        layer_idx: 0-based position in the stack.
    """

    kept_float32 = ("A_log", "dt_bias")

    def __init__(self, config: HybridConfig, layer_idx: int) -> None:
        super().__init__()
        heads, width = config.kda_num_heads, config.kda_head_dim
        hidden, channels = config.hidden_size, heads * width
        self.layer_idx = layer_idx
        self.num_heads, self.head_dim = heads, width
        self.lower_bound = config.gate_lower_bound
        self.full_rank_gate = config.use_full_rank_gate
        self.eps = config.rms_norm_eps
        # an attribute for comparisons with systems that have another; no checkpoint keeps it
        self.l2_norm_eps = L2_NORM_EPS
        self.q_proj = Linear(hidden, channels)
        self.k_proj = Linear(hidden, channels)
        self.v_proj = Linear(hidden, channels)
        # float32 on disk in K3's layout, in the dtype of the matrices in Kimi Linear's
        keep = config.published_class == "kimi_k3"
        self.q_conv1d = ShortConvolution(channels, config.short_conv_kernel_size, keep)
        self.k_conv1d = ShortConvolution(channels, config.short_conv_kernel_size, keep)
        self.v_conv1d = ShortConvolution(channels, config.short_conv_kernel_size, keep)
        self.f_a_proj = Linear(hidden, width)
        self.f_b_proj = Linear(width, channels)
        self.b_proj = Linear(hidden, heads)
        self.A_log = nn.Parameter(torch.empty(heads))
        self.dt_bias = nn.Parameter(torch.empty(channels))
        if self.full_rank_gate:
            self.g_proj = Linear(hidden, channels)
        else:
            self.g_a_proj = Linear(hidden, width)
            self.g_b_proj = Linear(width, channels)
        self.o_norm = HeadNorm(width, keep)
        self.o_proj = Linear(channels, hidden)
        # like nn.Linear: a layer made alone can be used at once; on meta there is nothing to fill
        if not self.A_log.is_meta:
            self.reset_parameters()

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        *,
        cache: DeltaState | None = None,
        lengths: Int[Tensor, "B"] | None = None,
        cu_seqlens: Int[Tensor, "offsets"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Mix `x` over time; advances `cache` when one is given.

        Args:
            x: normed input.
            cache: state and convolution windows before the first token of `x`.
            lengths: real tokens of each right-padded row; the rest changes no output and no state.
            cu_seqlens: offsets of packed sequences in the rows laid end to end; no cache then.

        Raises:
            InputError: both `cache` and `cu_seqlens`.
        """
        refuse_packed_cache(cache, cu_seqlens)
        if cache is not None and lengths is None and few(x):
            return self._step(x, cache)
        rows: dict[str, Any] = {"lengths": lengths, "cu_seqlens": cu_seqlens}
        windows = (
            (None, None, None) if cache is None else (cache.conv_q, cache.conv_k, cache.conv_v)
        )
        q, window_q = short_conv(
            self.q_proj(x), self._taps(self.q_conv1d), state=windows[0], **rows
        )
        k, window_k = short_conv(
            self.k_proj(x), self._taps(self.k_conv1d), state=windows[1], **rows
        )
        v, window_v = short_conv(
            self.v_proj(x), self._taps(self.v_conv1d), state=windows[2], **rows
        )
        z = self._heads(self.f_b_proj(self.f_a_proj(x)))
        g = kda_gate(z, self.A_log, self._heads(self.dt_bias), lower_bound=self.lower_bound)
        beta = at_least_float32(self.b_proj(x)).sigmoid()  # [B, T, H]
        o, state = kda(
            self._heads(q),  # [B, T, H, K]
            self._heads(k),
            self._heads(v),
            g,
            beta,
            state=None if cache is None else cache.state,
            min_decay=self.lower_bound,
            return_state=cache is not None,
            unit_eps=self.l2_norm_eps,
            overwrite=cache is not None,
            **rows,
        )
        if cache is not None:
            cache.update(cast(Tensor, state), window_q, window_k, window_v)
        gate = self.g_proj(x) if self.full_rank_gate else self.g_b_proj(self.g_a_proj(x))
        o = gated_rms_norm(o, self._heads(gate), self.o_norm.weight, self.eps)
        y: Tensor = self.o_proj(o.flatten(-2))
        return y

    def _step(self, x: Tensor, cache: DeltaState) -> Tensor:
        """The same for few tokens without a gradient, in as few calls as there can be."""
        y = kda_step(self, x, cache)
        if y is not None:
            return y
        gates = self.g_proj if self.full_rank_gate else self.g_a_proj
        q, k, v, f, b, gate = project(
            x, self.q_proj, self.k_proj, self.v_proj, self.f_a_proj, self.b_proj, gates
        )
        (q, k, v), windows = short_convs(
            (q, k, v),
            [self._taps(c) for c in (self.q_conv1d, self.k_conv1d, self.v_conv1d)],
            (cache.conv_q, cache.conv_k, cache.conv_v),
        )
        g, beta = kda_gates(
            self._heads(self.f_b_proj(f)),
            b,
            self.A_log,
            self._heads(self.dt_bias),
            self.lower_bound,
        )
        o, state = kda(
            self._heads(q),
            self._heads(k),
            self._heads(v),
            g,
            beta,
            state=cache.state,
            min_decay=self.lower_bound,
            unit_eps=self.l2_norm_eps,
            overwrite=True,
        )
        cache.update(cast(Tensor, state), *windows)
        if not self.full_rank_gate:
            gate = self.g_b_proj(gate)
        o = gated_rms_norm(o, self._heads(gate), self.o_norm.weight, self.eps)
        return cast(Tensor, self.o_proj(o.flatten(-2)))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim))

    @staticmethod
    def _taps(convolution: nn.Module) -> Tensor:
        weight = cast(Tensor, convolution.weight)
        return weight.squeeze(1)  # [H*K, W]

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Initialise what is no matrix, as in the reports (spec section 5, "Initialisation").

        Values are drawn on the CPU, whatever device the layer is on; from torch's own generator
        when none is given.
        """
        low, high = math.log(1e-3), math.log(1e-1)
        dt = torch.empty(self.dt_bias.shape, device="cpu").uniform_(low, high, generator=generator)
        dt = dt.exp().clamp(min=1e-4)
        with torch.no_grad():
            if self.lower_bound is None:
                a = torch.empty(self.A_log.shape, device="cpu")
                a.uniform_(1, 16, generator=generator)
                self.A_log.copy_(a.log())
            else:
                self.A_log.zero_()
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the stable inverse of softplus
            for convolution in (self.q_conv1d, self.k_conv1d, self.v_conv1d):
                bound = convolution.weight.shape[-1] ** -0.5
                taps = torch.empty(convolution.weight.shape, device="cpu")
                convolution.weight.copy_(taps.uniform_(-bound, bound, generator=generator))


class HeadNorm(KeepFloat32, nn.Module):
    """The weight `[V]` of the norm over each head, shared by all heads; `keep` as above."""

    def __init__(self, width: int, keep: bool = False) -> None:
        super().__init__()
        self.kept_float32 = ("weight",) if keep else ()
        self.weight = nn.Parameter(torch.ones(width))

    def extra_repr(self) -> str:
        """Size, for `print(model)`."""
        return str(self.weight.shape[0])

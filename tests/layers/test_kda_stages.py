"""Every stage inside a KDA layer against its own float64 value, not only what comes out at the end.

One projection at twice its value can leave a layer's output plausible; here the stage says so. The
float64 side is written from spec section 5 with nothing but torch's elementary functions.
"""

import pytest
import torch
from torch import nn

import interlace.layers.kda as home
from closeness import assert_close
from interlace.config import HybridConfig
from interlace.layers import KimiDeltaAttention

HEADS, K, W, D, B, T = 3, 7, 4, 23, 2, 19
STAGES = ["q", "k", "v", "f_a", "f_b", "g", "beta", "o", "gate", "normed", "y"]


def layer_of(bounded: bool) -> KimiDeltaAttention:
    kda, full = HybridConfig.layout(2, None, final_global=False)
    config = HybridConfig(
        vocab_size=5,
        hidden_size=D,
        num_hidden_layers=2,
        kda_layers=kda,
        full_attn_layers=full,
        num_attention_heads=1,
        qk_nope_head_dim=2,
        qk_rope_head_dim=1,
        v_head_dim=3,
        kv_lora_rank=4,
        kda_num_heads=HEADS,
        kda_head_dim=K,
        intermediate_size=6,
        max_position_embeddings=64,
        gate_lower_bound=-5.0 if bounded else None,
        use_full_rank_gate=bounded,
        model_type="kimi_k3" if bounded else "kimi_linear",
    )
    layer = KimiDeltaAttention(config, 0).requires_grad_(False)
    for name, parameter in layer.named_parameters():
        parameter.normal_(0, 0.5)
        if name == "o_norm.weight":
            parameter.add_(1)
    return layer


def by_the_book(layer: KimiDeltaAttention, x: torch.Tensor) -> dict[str, torch.Tensor]:
    weight = {name: parameter.double() for name, parameter in layer.named_parameters()}

    def linear(value, name):
        return value @ weight[f"{name}.weight"].T

    def convolved(name):
        taps, past = weight[f"{name}_conv1d.weight"][:, 0], linear(x, f"{name}_proj")
        padded = nn.functional.pad(past, (0, 0, W - 1, 0))
        mixed = sum(taps[:, tap] * padded[:, tap : tap + T] for tap in range(W))
        return (mixed * mixed.sigmoid()).view(B, T, HEADS, K)

    def unit(value):
        return value / (value.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    found = {"q": unit(convolved("q")), "k": unit(convolved("k")), "v": convolved("v")}
    found["f_a"] = linear(x, "f_a_proj")
    found["f_b"] = linear(found["f_a"], "f_b_proj")
    z = (found["f_b"] + weight["dt_bias"]).view(B, T, HEADS, K)
    rate = weight["A_log"].exp()[:, None]
    if layer.lower_bound is None:
        found["g"] = -rate * z.exp().log1p()
    else:
        found["g"] = layer.lower_bound * (rate * z).sigmoid()
    found["beta"] = linear(x, "b_proj").sigmoid()
    state = torch.zeros(B, HEADS, K, K, dtype=torch.float64)
    outs = []
    for t in range(T):
        k, v = found["k"][:, t], found["v"][:, t]
        state = found["g"][:, t].exp()[..., None] * state
        correction = v - torch.einsum("bhkv,bhk->bhv", state, k)
        correction = found["beta"][:, t, :, None] * correction
        state = state + k[..., None] * correction[..., None, :]
        outs.append(torch.einsum("bhkv,bhk->bhv", state, found["q"][:, t]) * K**-0.5)
    found["o"] = torch.stack(outs, 1)
    gate = (
        linear(x, "g_proj") if layer.full_rank_gate else linear(linear(x, "g_a_proj"), "g_b_proj")
    )
    found["gate"] = gate.view(B, T, HEADS, K)
    root = (found["o"].square().mean(-1, keepdim=True) + layer.eps).sqrt()
    found["normed"] = found["o"] / root * weight["o_norm.weight"] * found["gate"].sigmoid()
    found["y"] = linear(found["normed"].flatten(-2), "o_proj")
    return found


def as_computed(layer: KimiDeltaAttention, x: torch.Tensor, monkeypatch) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    kda, norm = home.kda, home.gated_rms_norm

    def watched_kda(q, k, v, g, beta, **options):
        out = kda(q, k, v, g, beta, **options)
        found.update(q=q, k=k, v=v, g=g, beta=beta, o=out[0])
        return out

    def watched_norm(o, gate, weight, eps):
        found.update(gate=gate, normed=norm(o, gate, weight, eps))
        return found["normed"]

    monkeypatch.setattr(home, "kda", watched_kda)
    monkeypatch.setattr(home, "gated_rms_norm", watched_norm)
    for name in ("f_a", "f_b"):
        module = getattr(layer, f"{name}_proj")
        module.register_forward_hook(lambda _m, _x, out, name=name: found.update({name: out}))
    found["y"] = layer(x)
    return found


@pytest.mark.parametrize("bounded", [False, True], ids=["kimi_linear", "k3"])
def test_b24_every_stage_of_kda_is_that_of_the_book(bounded, monkeypatch):
    layer = layer_of(bounded)
    x = torch.randn(B, T, D)
    computed, exact = as_computed(layer, x, monkeypatch), by_the_book(layer, x.double())
    assert list(exact) == STAGES
    for stage in STAGES:
        assert_close(computed[stage], exact[stage], 1e-5, stage)

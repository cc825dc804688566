"""Each stage inside a KDA layer against float64: a wrong projection cannot hide in the sum."""

from importlib import import_module

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

import interlace
from closeness import assert_close
from interlace.config import preset

HEADS, WIDTH, TOKENS = 3, 12, 21


def reference(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Every stage of spec section 5 in float64, token by token, in its order."""
    w = {name: value.double() for name, value in layer.state_dict().items()}
    x = x.double()
    out: dict[str, Tensor] = {}

    def heads(t: Tensor) -> Tensor:
        return t.reshape(*t.shape[:-1], HEADS, WIDTH)

    def short_conv(letter: str) -> Tensor:
        raw = x @ w[f"{letter}_proj.weight"].T
        taps = w[f"{letter}_conv1d.weight"][:, 0]  # [H*K, W]
        late = pad(raw, (0, 0, 3, 0))
        total = sum(late[:, tap : tap + TOKENS] * taps[:, tap] for tap in range(4))
        return total * torch.sigmoid(total)

    for letter in "qkv":
        out[f"{letter} after convolution"] = short_conv(letter)
    for letter in "qk":
        t = heads(out[f"{letter} after convolution"])
        out[f"{letter} of unit length"] = t / torch.sqrt((t * t).sum(-1, keepdim=True) + 1e-6)
    v = heads(out["v after convolution"])
    out["f_a"] = x @ w["f_a_proj.weight"].T
    out["f_b"] = out["f_a"] @ w["f_b_proj.weight"].T
    z = heads(out["f_b"] + w["dt_bias"])
    rate = w["A_log"].exp()[:, None]
    if layer.lower_bound is None:
        out["g"] = -rate * torch.log1p(torch.exp(z))
    else:
        out["g"] = layer.lower_bound * torch.sigmoid(rate * z)
    out["beta"] = torch.sigmoid(x @ w["b_proj.weight"].T)
    q, k = out["q of unit length"] * WIDTH**-0.5, out["k of unit length"]
    state = torch.zeros(x.shape[0], HEADS, WIDTH, WIDTH, dtype=torch.float64)
    rows = []
    for t in range(TOKENS):
        state = out["g"][:, t].exp()[..., None] * state
        seen = (state * k[:, t, ..., None]).sum(-2)
        correction = out["beta"][:, t, :, None] * (v[:, t] - seen)
        state = state + k[:, t, ..., None] * correction[..., None, :]
        rows.append((state * q[:, t, ..., None]).sum(-2))
    o = out["o before its norm"] = torch.stack(rows, 1)
    if layer.full_rank_gate:
        gate = x @ w["g_proj.weight"].T
    else:
        gate = x @ w["g_a_proj.weight"].T @ w["g_b_proj.weight"].T
    out["gate"] = heads(gate)
    normed = o * torch.rsqrt((o * o).mean(-1, keepdim=True) + 1e-5) * w["o_norm.weight"]
    out["o after norm and gate"] = normed * torch.sigmoid(out["gate"])
    out["y"] = out["o after norm and gate"].flatten(-2) @ w["o_proj.weight"].T
    return out


@pytest.fixture
def recorded(monkeypatch):
    """What goes into and comes out of each operator that the layer calls."""
    module = import_module("interlace.layers.kda")
    calls: dict[str, list] = {}

    def watch(name):
        run = getattr(module, name)

        def record(*args, **kwargs):
            result = run(*args, **kwargs)
            calls.setdefault(name, []).append((args, result))
            return result

        monkeypatch.setattr(module, name, record)

    for name in ("short_conv", "l2norm", "kda", "gated_rms_norm"):
        watch(name)
    return calls


@pytest.mark.parametrize("style", ["kimi_linear", "k3"])
def test_b24_every_stage_of_kda_is_right(recorded, style):
    changes = {"gate_lower_bound": -5.0, "use_full_rank_gate": True} if style == "k3" else {}
    config = preset("kimi-linear-tiny").replace(kda_num_heads=HEADS, kda_head_dim=WIDTH, **changes)
    layer = interlace.build(config).model.layers[0].self_attn.requires_grad_(False)
    for name, value in layer.named_parameters():
        noise = torch.randn(value.shape)
        scale = 0.5 if name.endswith(("A_log", "conv1d.weight")) else value.shape[-1] ** -0.5
        value.copy_(1 + 0.3 * noise if "o_norm" in name else noise * scale)
    layer.dt_bias.copy_(-2 + torch.randn(layer.dt_bias.shape))
    x = torch.randn(2, TOKENS, config.hidden_size)
    got = {"y": layer(x), "f_a": layer.f_a_proj(x)}
    got["f_b"] = layer.f_b_proj(got["f_a"])
    for letter, (_, (value, _)) in zip("qkv", recorded["short_conv"], strict=True):
        got[f"{letter} after convolution"] = value
    for letter, (_, value) in zip("qk", recorded["l2norm"], strict=True):
        got[f"{letter} of unit length"] = value
    (((_, _, _, got["g"], got["beta"]), (got["o before its norm"], _)),) = recorded["kda"]
    (((_, got["gate"], *_), got["o after norm and gate"]),) = recorded["gated_rms_norm"]
    wanted = reference(layer, x)
    assert got.keys() == wanted.keys()
    for stage, value in wanted.items():
        assert_close(got[stage], value, 1e-5, stage)

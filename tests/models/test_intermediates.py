"""Each stage inside a mixer against float64: a wrong projection cannot hide in the sum."""

from importlib import import_module

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

import interlace
from closeness import assert_close
from interlace.config import preset
from interlace.ops.norm import l2norm

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

    for name in ("short_conv", "kda", "gated_rms_norm"):
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
    got = {}
    for name in ("f_a", "f_b"):
        projection = getattr(layer, f"{name}_proj")
        projection.register_forward_hook(lambda _, args, out, name=name: got.update({name: out}))
    got["y"] = layer(x)
    for letter, (_, (value, _)) in zip("qkv", recorded["short_conv"], strict=True):
        got[f"{letter} after convolution"] = value
    (((q, k, _, got["g"], got["beta"]), (got["o before its norm"], _)),) = recorded["kda"]
    for letter, value in (("q", q), ("k", k)):
        got[f"{letter} of unit length"] = l2norm(value, layer.l2_norm_eps)
    (((_, got["gate"], *_), got["o after norm and gate"]),) = recorded["gated_rms_norm"]
    wanted = reference(layer, x)
    assert got.keys() == wanted.keys()
    for stage, value in wanted.items():
        assert_close(got[stage], value, 1e-5, stage)


def mla_reference(layer: torch.nn.Module, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Spec section 4 in float64, head by head and query by query."""
    heads, nope, shared, value, rank = sizes
    w = {name: tensor.double() for name, tensor in layer.state_dict().items()}
    x = x.double()

    def norm(t: Tensor, name: str) -> Tensor:
        return t * torch.rsqrt((t * t).mean(-1, keepdim=True) + 1e-6) * w[f"{name}.weight"]

    if "q_proj.weight" in w:
        q = x @ w["q_proj.weight"].T
    else:
        q = norm(x @ w["q_a_proj.weight"].T, "q_a_layernorm") @ w["q_b_proj.weight"].T
    joint = x @ w["kv_a_proj_with_mqa.weight"].T
    latent, k_shared = norm(joint[..., :rank], "kv_a_layernorm"), joint[..., rank:]
    parts = []
    for h in range(heads):
        q_h = q[..., h * (nope + shared) : (h + 1) * (nope + shared)]
        up = w["kv_b_proj.weight"][h * (nope + value) : (h + 1) * (nope + value)]
        k_h = torch.cat([latent @ up[:nope].T, k_shared], -1)
        v_h = latent @ up[nope:].T
        rows = []
        for t in range(x.shape[1]):
            scores = (k_h[:, : t + 1] * q_h[:, t : t + 1]).sum(-1) * (nope + shared) ** -0.5
            rows.append((scores.softmax(-1)[..., None] * v_h[:, : t + 1]).sum(1))
        parts.append(torch.stack(rows, 1))
    o = torch.cat(parts, -1)
    if "g_proj.weight" in w:
        o = o * torch.sigmoid(x @ w["g_proj.weight"].T)
    return o @ w["o_proj.weight"].T


@pytest.mark.parametrize("gated", [False, True], ids=["no gate", "gate"])
@pytest.mark.parametrize("low_rank", [None, 13], ids=["direct query", "low-rank query"])
def test_b29_b32_gated_mla_is_the_spec_with_all_sizes_different(low_rank, gated):
    config = preset("kimi-linear-tiny").replace(
        hidden_size=40,
        num_attention_heads=3,
        qk_nope_head_dim=5,
        qk_rope_head_dim=2,
        v_head_dim=7,
        kv_lora_rank=11,
        q_lora_rank=low_rank,
        mla_use_output_gate=gated,
    )
    lm = interlace.build(config, dtype="float64").requires_grad_(False)
    index = config.full_attn_layers[0] - 1
    layer = lm.model.layers[index].self_attn
    for name, weight in layer.named_parameters():
        noise = torch.randn_like(weight)
        weight.copy_(1 + 0.3 * noise if "norm" in name else noise * weight.shape[-1] ** -0.5)
    x = torch.randn(2, 60, 40, dtype=torch.float64)
    wanted = mla_reference(layer, x, (3, 5, 2, 7, 11))
    assert_close(layer(x), wanted, 1e-10, "expanded")
    for cuts in ([60], [9] * 6 + [6], [50, *[1] * 10]):
        cache = lm.new_cache(2).layers[index]
        parts = [layer(part, cache=cache) for part in x.split(cuts, 1)]
        assert_close(torch.cat(parts, 1), wanted, 1e-10, f"cached, {cuts}")

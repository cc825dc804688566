"""Faults planted in the fast way, one at a time: the check turns red and names the layer."""

from importlib import import_module

import pytest
import torch

from interlace.caches import DeltaState
from interlace.check import check_model, draw_rows
from interlace.layers import GatedMLA, KimiDeltaAttention
from interlace.ops.conv import short_convs
from interlace.ops.delta_rule import kda_reference
from interlace.ops.delta_rule.choose import FEW_TOKENS
from interlace.ops.norm import l2norm_reference, rms_norm_reference
from tiny_models import model

kda, mla, moe = (import_module(f"interlace.layers.{name}") for name in ("kda", "mla", "moe"))
# more tokens than the loop of the delta rule takes
ROWS = draw_rows(61, FEW_TOKENS + 1)
LAYERS = {"num_hidden_layers": 2, "kda_layers": (1,), "full_attn_layers": (2,)}
PLACE = {"KDA": 0, "experts": 1, "Gated MLA": 1}
"""The layer of each kind in the model of these tests."""


@pytest.fixture(scope="module")
def lm():
    return model(mla_use_output_gate=True, num_shared_experts=0, **LAYERS)


def wrapped(module, name, change):
    """An operator of a layer, called with changed arguments."""
    run = getattr(module, name)
    return lambda *args, **kwargs: run(*change(list(args), kwargs), **kwargs)


def scale_of_nope(args, kwargs):
    kwargs["scale"] = 10**-0.5
    return args


def no_shared_key(args, kwargs):
    args[0] = args[0].clone()
    args[0][..., 10:] = 0
    return args


def mean_for_sum(args, kwargs):
    eps = kwargs.pop("unit_eps")
    for i in range(2):
        args[i] = args[i] * torch.rsqrt(args[i].square().mean(-1, keepdim=True) + eps)
    return args


def decay_after_delta(q, k, v, g, beta, *, unit_eps, state=None, **options):
    """The recurrence, but each step decays what it has just written."""
    q, k = l2norm_reference(q, unit_eps), l2norm_reference(k, unit_eps)
    outs = []
    S = torch.zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3]) if state is None else state
    for t in range(q.shape[1]):
        now = slice(t, t + 1)
        _, S = kda_reference(q[:, now], k[:, now], v[:, now], None, beta[:, now], state=S)
        S = g[:, t].exp()[..., None] * S
        outs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t] * q.shape[-1] ** -0.5))
    return torch.stack(outs, 1), S


def gate_before_norm(o, gate, weight, eps):
    return rms_norm_reference(o * torch.sigmoid(gate), weight, eps)


def raw_latent(self, x):
    return self.kv_a_proj_with_mqa(x)


def window_short(xs, weights, states):
    outs, windows = short_convs(xs, weights, states)
    return outs, [torch.cat([w[:, :1] * 0, w[:, 1:]], 1) for w in windows]


def rounded_state(self, state, *windows):
    keep(self, state.bfloat16().float(), *windows)


keep = DeltaState.update
expand, absorbed_weights = GatedMLA._expand, GatedMLA._absorbed_weights


def v_of_the_k_half(self, latent):
    k, _ = expand(self, latent)
    kv = self.kv_b_proj(latent[..., : self.latent_rank])
    heads = kv.unflatten(-1, (self.num_heads, -1))
    return k, heads[..., : self.v_dim]


def v_of_the_k_half_absorbed(self):
    w_uk, w_uv = absorbed_weights(self)
    return w_uk, torch.cat([w_uk, w_uv], 1)[:, : self.v_dim]


def weigh_by_the_bias(args, kwargs):
    kwargs["biased_weights"] = True
    return args


reversed_taps = staticmethod(lambda convolution: convolution.weight.squeeze(1).flip(-1))
no_gate = property(lambda self: False, lambda self, value: None)


FAULTS = {
    "scale of the nope width, expanded": (
        "Gated MLA",
        "expanded",
        (mla, "attention_expanded", wrapped(mla, "attention_expanded", scale_of_nope)),
    ),
    "scale of the nope width, absorbed": (
        "Gated MLA",
        "absorbed",
        (mla, "latent_attention", wrapped(mla, "latent_attention", scale_of_nope)),
    ),
    "mean for sum in the L2 norm": (
        "KDA",
        "chunked",
        (kda, "kda", wrapped(kda, "kda", mean_for_sum)),
    ),
    "decay after delta": ("KDA", "chunked", (kda, "kda", decay_after_delta)),
    "convolution taps reversed": ("KDA", "chunked", (KimiDeltaAttention, "_taps", reversed_taps)),
    "MLA gate dropped": ("Gated MLA", "expanded", (GatedMLA, "use_output_gate", no_gate)),
    "KDA gate before its norm": ("KDA", "chunked", (kda, "gated_rms_norm", gate_before_norm)),
    "biased routing weights": (
        "experts",
        "one call",
        (moe, "choose", wrapped(moe, "choose", weigh_by_the_bias)),
    ),
    "latent used before its norm": ("Gated MLA", "expanded", (GatedMLA, "_latent", raw_latent)),
    "state in bf16": ("KDA", "recurrent", (DeltaState, "update", rounded_state)),
    "shared key left out, expanded": (
        "Gated MLA",
        "expanded",
        (mla, "attention_expanded", wrapped(mla, "attention_expanded", no_shared_key)),
    ),
    "shared key left out, absorbed": (
        "Gated MLA",
        "absorbed",
        (mla, "latent_attention", wrapped(mla, "latent_attention", no_shared_key)),
    ),
    "v of the k half, expanded": ("Gated MLA", "expanded", (GatedMLA, "_expand", v_of_the_k_half)),
    "v of the k half, absorbed": (
        "Gated MLA",
        "absorbed",
        (GatedMLA, "_absorbed_weights", v_of_the_k_half_absorbed),
    ),
    "window one token short": ("KDA", "recurrent", (kda, "short_convs", window_short)),
}
"""Kind of layer, the first way that is wrong, and what replaces what."""


def test_without_a_fault_all_is_green(lm):
    report = check_model(lm, ROWS)
    assert report.ok, report.first_bad.describe()
    assert report.first_bad is None
    assert all(finding.judged for finding in report.findings)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_red_and_the_layer_is_named(lm, monkeypatch, fault):
    kind, way, (owner, name, value) = FAULTS[fault]
    monkeypatch.setattr(owner, name, value, raising=False)
    report = check_model(lm, ROWS, saved=False, fail_fast=True)
    bad = report.first_bad
    assert bad is not None
    assert (bad.layer, bad.kind, bad.way) == (PLACE[kind], kind, way)
    assert f"layer {PLACE[kind]}, {kind}, {way}" in bad.describe()
    # no other kind of layer is blamed for it, and none behind it is looked at
    found = {f.kind for f in report.findings if not f.ok}
    assert found <= {kind, "stream after the layer"}
    assert report.findings[-1].layer == PLACE[kind]


def test_every_layer_of_a_kind_is_red_and_the_logits_are_too(lm, monkeypatch):
    monkeypatch.setattr(kda, "kda", wrapped(kda, "kda", mean_for_sum))
    monkeypatch.setattr(moe, "choose", wrapped(moe, "choose", weigh_by_the_bias))
    report = check_model(lm, ROWS, saved=False)
    red = {(f.layer, f.kind) for f in report.findings if not f.ok}
    assert {(0, "KDA"), (1, "experts"), (None, "logits")} <= red
    assert not {(0, "MLP"), (0, "norm"), (1, "Gated MLA"), (None, "head")} & red

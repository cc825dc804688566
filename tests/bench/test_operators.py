"""Operators: each is timed beside its limit, and its error is that of its precision."""

import pytest
import torch
from bench_sizes import TINY

from interlace.bench import cases
from interlace.bench.cold import Cold
from interlace.bench.operators import SIZES, measure, names
from interlace.config import preset


def test_every_operator_of_a_model_with_experts():
    ticks = []
    found = measure(
        "kimi-linear-tiny", depths=(70,), prompt=50, tick=lambda: ticks.append(1), **TINY
    )
    assert [r["operator"] for r in found] == names("kimi-linear-tiny", (70,))
    assert {r["operator"] for r in found} == {
        "attention decode",
        "attention prefill",
        "attention chunk",
        "kda step",
        "kda prefill",
        "convolution",
        "gated norm",
        "norm",
        "linear",
        "swiglu",
        "experts",
    }
    assert len(ticks) == 2 * len(found)
    for record in found:
        assert 0 < record["error"] < 2e-2, record["operator"]  # bf16
        assert record["share"] > 0
        assert record["rate"] == pytest.approx(record["amount"] / record["seconds"])
        assert len(record["runs"]) == 2
        assert record["limit"] in {"bf16", "read", "copy"}


def test_only_names_some_and_models_without_a_layer_lack_its_operators():
    assert names("default", (9,), "kda") == ["kda step", "kda prefill"]
    assert names("mid-mla", (9, 8)).count("attention decode") == 2
    assert not [name for name in names("mid-mla", (9,)) if "kda" in name]
    assert set(SIZES) == {"kimi-k3", "kimi-linear-48b", "default"}


def test_an_error_sees_a_wrong_operator(monkeypatch):
    make = dict(cases.all_cases(preset("default"), (40,), 30))["attention decode"]
    case = make(Cold(1 << 20))
    good = case.error()
    right = cases.latent_attention
    monkeypatch.setattr(cases, "latent_attention", lambda *a, **k: 1.1 * right(*a, **k))
    assert case.error() > max(1e-3, 10 * good)


def test_decoding_takes_other_memory_at_every_call(monkeypatch):
    seen = []
    monkeypatch.setattr(cases, "linear", lambda x, w: seen.append(w.data_ptr()) or x)
    cold = Cold(1 << 20)
    case = dict(cases.all_cases(preset("default"), (), 30))["linear"](cold)
    for _ in range(3):
        case.run()
    assert len(set(seen)) == 3
    assert case.work.read == 2 * 128 * 192


def test_experts_are_no_more_than_the_buffer_holds():
    config = preset("kimi-linear-tiny")
    cold = Cold(6 * 32 * 64 * 5)
    case = dict(cases.all_cases(config, (), 30))["experts"](cold)
    assert "2 of 5 experts" in case.detail
    with torch.inference_mode():
        case.run()

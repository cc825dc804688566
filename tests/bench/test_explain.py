"""What is explained is what runs."""

import logging

import pytest
import torch

import interlace
from interlace.bench.explain import explain_model, table
from interlace.config import preset
from interlace.layers.linear import FEW
from interlace.ops import dispatch
from interlace.ops.native import absence

CHOSEN = ("attention", "kda", "linear", "conv", "gate", "norm", "step")


@pytest.mark.parametrize("tokens", [1, 16, 512])
def test_explained_ways_are_those_that_a_model_takes(tokens, monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "_announced", set())
    lm = interlace.build("kimi-linear-tiny", dtype="bfloat16")
    rows = explain_model(lm.config, [tokens])
    call = f"{tokens:,} tokens"
    expected = {row.way for row in rows if row.call in (call, "any") and row.chosen}
    # what has no other way does not say that it was used
    expected = {way for way in expected if way.split(".")[0] in CHOSEN} - {"attention.expanded"}
    if "step.native" in expected:
        # the parts of a step that is one call choose nothing by themselves
        expected = {way for way in expected if way.split(".")[0] not in ("kda", "conv", "gate")}
    if tokens > FEW:
        expected -= {"conv.channels_last", "gate.torch"}
    with torch.inference_mode(), caplog.at_level(logging.INFO, logger="interlace"):
        lm(torch.zeros(1, tokens, dtype=torch.long), cache=lm.new_cache(1), last_only=True)
    used = {r.getMessage().split()[1] for r in caplog.records if "using" in r.getMessage()}
    # an expert's step has as many rows as chose it
    assert {way for way in used if not way.startswith("step")} == {
        way for way in expected if not way.startswith("step")
    }
    if tokens == 1:
        assert used & {"step.native", "step.calls"} == expected & {"step.native", "step.calls"}


def test_every_way_that_is_left_has_its_reason():
    rows = explain_model(preset("kimi-k3"))
    assert all(row.reason for row in rows if not row.chosen)
    training = {row.way: row for row in rows if row.call == "training"}
    assert training["kda.chunk"].chosen
    assert "backward" in training["kda.recurrent"].reason
    per_call = [(row.operator, row.call) for row in rows if row.chosen]
    assert len(per_call) == len(set(per_call)) == len({(r.operator, r.call) for r in rows})


def test_models_without_a_layer_explain_none_of_it():
    assert not [r for r in explain_model(preset("mid-mla")) if r.way.startswith("kda")]
    text = table(explain_model(preset("mid")))
    many = "rebuilt" if absence() else "native_rebuilt"
    assert f"| `attention.{many}` | runs |" in text
    assert "moe" not in text

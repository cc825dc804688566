"""The adapter for lm-evaluation-harness: run by `make lm-eval`, where the harness is installed."""

import sys
from types import SimpleNamespace

import pytest
import torch

import interlace
from interlace.errors import InputError, MissingExtra
from small_models import tiny


def asked(*args):
    return SimpleNamespace(args=args)


def test_without_the_harness_the_command_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    monkeypatch.delitem(sys.modules, "interlace.generation.harness", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'interlace\[lm-eval\]'"):
        __import__("interlace.generation.harness")


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("lm_eval")
    from interlace.generation.harness import HarnessLM

    return HarnessLM(tiny())


def test_scores_are_those_of_the_joined_text(model):
    lm = tiny()
    found = model.loglikelihood([asked("def f(): ", "x"), asked("", "ab")])
    ids = list(b"def f(): x")
    with torch.no_grad():
        logprobs = lm(torch.tensor([ids])).double().log_softmax(-1)[0]
    # the space at the end of the context is scored with what follows it
    expected = sum(float(logprobs[place - 1, ids[place]]) for place in (8, 9))
    assert found[0][0] == pytest.approx(expected, abs=1e-5)
    assert found[1][0] == pytest.approx(interlace.loglikelihood(lm, "ab").logprob, abs=1e-5)
    rolling = model.loglikelihood_rolling([asked("ab"), asked("xyz")])
    assert rolling[0] == pytest.approx(found[1][0], abs=1e-5)


def test_text_ends_where_the_task_says(model):
    whole = model.generate_until([asked("def f():", {"until": [], "max_gen_toks": 9})])[0]
    assert whole == interlace.generate(tiny(), "def f():", max_tokens=9)
    stop = whole[3]
    cut = model.generate_until([asked("def f():", {"until": [stop], "max_gen_toks": 9})])[0]
    assert cut == whole[: whole.index(stop)]
    with pytest.raises(InputError, match="got beams"):
        model.generate_until([asked("a", {"beams": 3})])

"""How likely a text is: by hand, in chunks and batches, on the command line; what is refused."""

import json
import math

import pytest
import torch

import interlace
from interlace.cli import main
from interlace.errors import InputError, MemoryLimitError, NonFiniteError
from interlace.generation import memory
from small_models import tiny

TEXTS = ["def f(x):\n    return x", "a", "# \u00b5", "x = 1\n" * 9]


@pytest.fixture(scope="module")
def lm():
    return tiny()


def by_hand(lm, ids, start):
    with torch.no_grad():
        logprobs = lm(torch.tensor([ids])).double().log_softmax(-1)[0]
    return [float(logprobs[place - 1, ids[place]]) for place in range(start, len(ids))]


def test_each_token_is_scored_from_the_one_before_it(lm):
    ids = [5, 9, 200, 13, 9]
    score = interlace.loglikelihood(lm, ids)
    assert score.token_ids == (9, 200, 13, 9)  # nothing stands before the first
    assert score.logprobs == pytest.approx(by_hand(lm, ids, 1), abs=1e-5)
    assert score.logprob == pytest.approx(sum(score.logprobs))
    assert score.perplexity == pytest.approx(math.exp(-score.logprob / 4))
    behind = interlace.loglikelihood(lm, ids[3:], context=ids[:3])
    assert behind.logprobs == pytest.approx(by_hand(lm, ids, 3), abs=1e-5)
    assert behind.bits_per_byte == pytest.approx(-behind.logprob / math.log(2) / 2)


@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("batch", [1, 3, None])
def test_rows_of_a_batch_are_those_alone_whatever_the_chunk(lm, chunk, batch):
    contexts = ["", "import os\n", "\n", "def"]
    together = interlace.loglikelihood(
        lm, TEXTS, context=contexts, prefill_chunk=chunk, batch_size=batch
    )
    for text, before, score in zip(TEXTS, contexts, together, strict=True):
        ids = [*before.encode(), *text.encode()]
        expected = by_hand(lm, ids, max(1, len(before.encode())))
        assert score.logprobs == pytest.approx(expected, abs=1e-5)


def test_greedy_is_what_generation_makes(lm):
    made = interlace.stream(lm, [7, 11, 13], max_tokens=9, ignore_eos=True)
    for _ in made:
        pass
    ids = list(made.result.token_ids)
    assert interlace.loglikelihood(lm, ids, context=[7, 11, 13]).greedy
    other = [*ids[:-1], (ids[-1] + 1) % 256]
    assert not interlace.loglikelihood(lm, other, context=[7, 11, 13]).greedy


def test_what_cannot_be_scored_is_refused(lm, monkeypatch):
    with pytest.raises(InputError, match="must not be empty"):
        interlace.loglikelihood(lm, "")
    with pytest.raises(InputError, match="got 256"):
        interlace.loglikelihood(lm, [3, 256])
    with pytest.raises(InputError, match="one for each text, got 1 for 2"):
        interlace.loglikelihood(lm, ["a", "b"], context=["c"])
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        interlace.loglikelihood(lm, "ab", batch_size=0)
    monkeypatch.setattr(memory, "available", lambda: memory.Available(10_000, "the system"))
    with pytest.raises(MemoryLimitError, match="log-probabilities"):
        interlace.loglikelihood(lm, "ab")


def test_logits_that_are_no_numbers_are_told():
    lm = tiny()
    lm.lm_head.weight.data[3] = float("nan")
    with pytest.raises(NonFiniteError, match="finite"):
        interlace.loglikelihood(lm, "ab")


def test_the_command_scores_a_file(capsys, tmp_path):
    file = tmp_path / "a.py"
    file.write_text(TEXTS[0])
    ask = ["generate", "kimi-linear-tiny", "--prompt-file", str(file), "--score"]
    assert main([*ask, "--json"]) == 0
    got = json.loads(capsys.readouterr().out)
    lm = interlace.build("kimi-linear-tiny", seed=0)
    score = interlace.loglikelihood(lm, TEXTS[0])
    assert got["logprob"] == pytest.approx(score.logprob)
    assert got["perplexity"] == pytest.approx(score.perplexity)
    assert (got["tokens"], got["bytes"]) == (len(score.token_ids), score.num_bytes)
    assert main(ask) == 0
    assert "perplexity" in capsys.readouterr().out
    assert main([*ask, "--cache", str(tmp_path / "c")]) == 2
    assert "--cache must be left out" in capsys.readouterr().err

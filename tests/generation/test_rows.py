"""Rows of a batch: each is what it is alone. How they stop, and what they are drawn from."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import interlace
from interlace.errors import InputError
from interlace.generation import SamplingOptions
from interlace.generation.sampling import Sampler
from interlace.generation.stopping import StopStrings
from small_models import marked, tiny

PROMPTS = ["def f(x):", "a", "class Something(Base):\n    pass\n", "x = 1"]


@pytest.fixture(scope="module")
def lm():
    return tiny()


def script(monkeypatch, ids):
    given_ids = iter(ids)
    monkeypatch.setattr(Sampler, "pick", lambda self, logits: next(given_ids))


@pytest.mark.parametrize(("chunk", "size"), [(1, 4), (5, 4), (9, 2), (64, 3)])
def test_a_row_is_what_it_is_alone(lm, chunk, size):
    batch = interlace.generate(
        lm, PROMPTS, max_tokens=20, ignore_eos=True, prefill_chunk=chunk, batch_size=size
    )
    alone = [interlace.generate(lm, p, max_tokens=20, ignore_eos=True) for p in PROMPTS]
    assert batch == alone
    assert len(set(batch)) == len(PROMPTS)


def test_each_row_draws_by_a_seed_of_its_own(lm):
    options = {"max_tokens": 12, "temperature": 1.0}
    seeds = [3, 8, 3, 5]
    batch = interlace.generate(lm, ["same"] * 4, seed=seeds, **options)
    assert batch == [interlace.generate(lm, "same", seed=seed, **options) for seed in seeds]
    assert batch[0] == batch[2] != batch[1]


def oracle(text, stops):
    """The text before the first place where a stop string begins."""
    places = [place for place in map(text.find, stops) if place >= 0]
    return text[: min(places)] if places else text


@given(
    st.text("abc", max_size=30),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_stop_strings_end_the_text_however_it_is_cut(text, stops, draw):
    cuts = sorted(draw.randrange(len(text) + 1) for _ in range(5)) if text else []
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    wanted = oracle(text, stops)
    draw.shuffle(stops)
    machine = StopStrings(stops)
    found = ""
    for piece in pieces:
        found += machine.feed(piece)
        assert wanted.startswith(found)  # nothing is given that has to be taken back
    assert found + machine.flush() == wanted
    assert (machine.match is not None) == any(stop in text for stop in stops)


@pytest.mark.parametrize("stop", ["BC", ["CD", "BC"], ["D", "BC", "BCDE"], ("ABX", "BC")])
def test_b87_stop_strings_are_honoured_streamed_or_not(monkeypatch, stop):
    for way in ("stream", "whole"):
        script(monkeypatch, b"ABCDEF")
        stream = interlace.stream(marked(), "x", max_tokens=6, stop=stop)
        text = "".join(stream) if way == "stream" else (list(stream), stream.result.text)[1]
        assert text == "A"
        assert (stream.result.finish_reason, stream.result.stopped_by) == ("stop", "BC")
    script(monkeypatch, b"ABCDEF")
    assert interlace.generate(marked(), "x", max_tokens=6, stop=stop) == "A"


@pytest.mark.parametrize("stop", [[], "", ["a", ""]])
def test_b87_stops_that_are_none_are_refused(stop):
    with pytest.raises(InputError, match="stop"):
        SamplingOptions(stop=stop)


def test_a_character_of_a_stop_string_may_be_cut_by_tokens(monkeypatch):
    script(monkeypatch, "Aé!B".encode())
    assert interlace.generate(marked(), "x", max_tokens=5, stop="é!") == "A"


@pytest.mark.parametrize("count", [-1, True])
def test_b90_a_limit_that_is_none_is_refused(lm, count):
    with pytest.raises(InputError, match="max_tokens"):
        interlace.stream(lm, "abc", max_tokens=count)


def test_b90_the_limit_is_kept_and_an_end_at_the_cap_is_a_stop(monkeypatch):
    script(monkeypatch, [65, 66, 67])
    stream = interlace.stream(marked(), "x", max_tokens=1)
    assert "".join(stream) == "A"
    assert (stream.result.new_tokens, stream.result.finish_reason) == (1, "length")
    script(monkeypatch, [65, 257])
    stream = interlace.stream(marked(), "x", max_tokens=2)
    assert "".join(stream) == "A"
    assert stream.result.finish_reason == "stop"
    script(monkeypatch, [65, 66])
    stream = interlace.stream(marked(), "x", max_tokens=2, stop="B")
    assert "".join(stream) == "A"
    assert stream.result.finish_reason == "stop"


def test_b91_each_token_has_its_own_log_probabilities(lm):
    stream = interlace.stream(
        lm, b"abc", max_tokens=5, temperature=1.0, seed=2, logprobs=3, logit_bias={65: 2.0}
    )
    text = "".join(stream)
    result = stream.result
    ids = list(b"abc")
    for token, found in zip(result.token_ids, result.logprobs, strict=True):
        exact = lm(torch.tensor([ids]))[0, -1].double().log_softmax(0)
        values, places = exact.topk(3)
        assert found.token == token
        assert found.logprob == pytest.approx(float(exact[token]), abs=1e-5)
        assert [t for t, _ in found.top] == places.tolist()
        assert [v for _, v in found.top] == pytest.approx(values.tolist(), abs=1e-5)
        ids.append(token)
    # half a character at the end is held back
    assert bytes(result.token_ids).decode(errors="replace").startswith(text)
    tops = [found.top for found in result.logprobs]
    assert len(set(tops)) > 1
    total = sum(found.logprob for found in result.logprobs)
    score = interlace.loglikelihood(lm, list(result.token_ids), context=list(b"abc"))
    assert score.logprob == pytest.approx(total, abs=1e-4)


def drawn(logits, prompt=(), count=400, **options):
    sampler = Sampler(SamplingOptions(temperature=1.0, seed=1, **options), None, prompt)
    return [sampler.pick(torch.tensor(logits)) for _ in range(count)]


LOGITS = [math.log(p) for p in (0.5, 0.25, 0.15, 0.07, 0.03)]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"min_p": 0.29}, {0, 1, 2}),
        ({"min_p": 0.31}, {0, 1}),
        ({"top_k": 3, "top_p": 0.8}, {0, 1}),
        ({"logit_bias": {4: 50.0}}, {4}),
        ({"logit_bias": {0: -50.0, 1: -50.0}}, {2, 3, 4}),
    ],
)
def test_what_may_be_drawn(options, kept):
    assert set(drawn(LOGITS, **options)) == kept


def test_penalties_change_the_logits_of_what_was_there():
    greedy = SamplingOptions(temperature=0.0, presence_penalty=0.5)
    sampler = Sampler(greedy, None, [1])
    logits = torch.tensor([2.0, 2.2, 1.8])
    # 1 of the prompt is not penalised by presence; then 1, 0, 2 are made in turn
    assert [sampler.pick(logits) for _ in range(3)] == [1, 0, 2]
    sampler = Sampler(SamplingOptions(repetition_penalty=2.0), None, [1])
    assert sampler.pick(logits) == 0
    negative = Sampler(SamplingOptions(repetition_penalty=2.0), None, [0])
    assert negative.pick(torch.tensor([-1.0, -1.5])) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"top_k": 0},
        {"min_p": 1.0},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"presence_penalty": math.inf},
        {"seed": -1},
        {"logprobs": -1},
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused_by_name(options):
    with pytest.raises(InputError, match=next(iter(options))):
        SamplingOptions(**options)


@pytest.mark.parametrize("options", [{"logit_bias": {256: 1.0}}, {"stop_tokens": [-2]}], ids=str)
def test_ids_that_the_model_does_not_have_are_refused(lm, options):
    with pytest.raises(InputError, match=next(iter(options))):
        interlace.stream(lm, "a", **options)


def test_stop_tokens_end_a_row_and_not_its_neighbour(lm):
    alone = interlace.stream(lm, "a", max_tokens=8)
    list(alone)
    cut = alone.result.token_ids[3]
    first = alone.result.token_ids.index(cut)
    options = [SamplingOptions(max_tokens=8, stop_tokens=[cut]), SamplingOptions(max_tokens=8)]
    texts = interlace.generate(lm, ["a", "a"], options=options)
    assert texts[1] == alone.result.text
    stopped = interlace.stream(lm, "a", max_tokens=8, stop_tokens=[cut])
    assert "".join(stopped) == texts[0]
    assert stopped.result.token_ids == alone.result.token_ids[: first + 1]
    assert stopped.result.stopped_by == cut

"""A prompt cache gives what reading anew gives, and never more than it can stand for."""

import pytest
import torch

from closeness import assert_close
from interlace.errors import CacheError
from interlace.generation import PromptCache
from tiny_models import model

EXACT = 1e-5


@pytest.fixture(scope="module")
def lm():
    return model()


def ids(*seeds, each=20):
    """Pieces of `each` ids, one for every seed: equal seeds, equal pieces."""
    pieces = [torch.Generator().manual_seed(seed) for seed in seeds]
    return [int(n) for g in pieces for n in torch.randint(0, 61, (each,), generator=g)]


def read(lm, cache, prompt, chunk=8, capacity=0):
    """Read a prompt as a generator does; the last logits and how much was reused."""
    held = cache.reuse(prompt, capacity)
    for first in range(held, len(prompt), chunk):
        part = prompt[first : first + chunk]
        logits = lm(torch.tensor([part]), cache=cache.cache, last_only=True)
        cache.fed(part)
    return logits, held


def cold(lm, prompt):
    return lm(torch.tensor([prompt]), last_only=True)


def small(lm, **options):
    return PromptCache.new(lm, **{"interval": 8, "max_snapshots": 6, **options})


def test_a_prompt_that_goes_on_is_reused_to_its_end(lm):
    cache = small(lm)
    assert read(lm, cache, ids(1, 2))[1] == 0
    logits, held = read(lm, cache, ids(1, 2, 3), capacity=77)
    assert held == 40
    assert cache.cache.capacity == 77
    assert cache.tokens == ids(1, 2, 3)
    assert_close(logits, cold(lm, ids(1, 2, 3)), EXACT)


def test_b44_an_edited_conversation_goes_back_to_a_snapshot_before_the_edit(lm):
    cache = small(lm)
    read(lm, cache, ids(1, 2, 3))
    kept = cache.cache.snapshots
    edited = ids(1, 2)[:30] + ids(4, 5)
    logits, held = read(lm, cache, edited)
    assert held == max(n for n in kept if n <= 30) > 0
    assert_close(logits, cold(lm, edited), EXACT)


def test_b36_a_hit_reads_only_states_that_were_written(lm):
    cache = small(lm)
    read(lm, cache, ids(1))
    for layer in cache.cache.layers:
        for value in layer.tensors.values():
            if value.shape[1:2] == (cache.cache.capacity,):
                value[:, len(cache.tokens) :] = float("nan")  # room that nothing was written to
    logits, held = read(lm, cache, ids(1, 2))
    assert held == 20
    assert_close(logits, cold(lm, ids(1, 2)), EXACT)


@pytest.mark.parametrize("length", [40, 39, 25, 1])
def test_b41_a_prompt_that_is_cached_to_its_last_token(lm, length):
    cache = small(lm)
    read(lm, cache, ids(1, 2))
    prompt = ids(1, 2)[:length]
    logits, held = read(lm, cache, prompt)
    assert held < length
    assert cache.tokens == prompt
    assert_close(logits, cold(lm, prompt), EXACT)


def test_b50_a_hit_changes_nothing_that_is_stored(lm):
    cache = small(lm)
    read(lm, cache, ids(1, 2))
    stored = [
        (value, value.clone())
        for state in cache.cache._snapshots.states
        for value in state.tensors.values()
    ]
    answers = []
    for _ in range(2):
        fork = cache.clone()
        read(lm, fork, ids(1, 2)[:33])
        for token in (5, 9, 2, 2, 7):
            logits = lm(torch.tensor([[token]]), cache=fork.cache)
            fork.fed([token])
        answers.append(logits)
    assert torch.equal(*answers)
    assert all(torch.equal(value, before) for value, before in stored)
    assert cache.tokens == ids(1, 2)
    assert read(lm, cache, ids(1, 2, 3))[1] == 40


def test_nothing_in_common_reads_all(lm):
    cache = small(lm)
    read(lm, cache, ids(1))
    logits, held = read(lm, cache, ids(2))
    assert held == 0
    assert cache.cache.length == 20
    assert_close(logits, cold(lm, ids(2)), EXACT)


def test_a_model_of_latents_alone_is_reused_to_the_token():
    lm = model(kda_layers=(), full_attn_layers=(1, 2, 3))
    cache = small(lm)
    read(lm, cache, ids(1, 2))
    prompt = ids(1, 2)[:29] + ids(3)
    logits, held = read(lm, cache, prompt)
    assert held == 29 + (prompt[29] == ids(1, 2)[29])
    assert_close(logits, cold(lm, prompt), EXACT)


@pytest.mark.parametrize("where", ["in the model", "behind it"])
def test_an_interrupt_leaves_a_cache_that_can_be_used(lm, monkeypatch, where):
    cache = small(lm)
    read(lm, cache, ids(1, 2))

    def stop(*_, **__):
        raise KeyboardInterrupt

    owner = lm.model.layers[1] if where == "in the model" else cache
    with monkeypatch.context() as broken:
        broken.setattr(owner, "forward" if where == "in the model" else "fed", stop)
        with pytest.raises(KeyboardInterrupt):
            read(lm, cache, ids(1, 2, 3), chunk=5)
    logits, held = read(lm, cache, ids(1, 2, 4))
    assert held == 40  # the snapshot at the end of the first prompt
    assert_close(logits, cold(lm, ids(1, 2, 4)), EXACT)


def test_what_is_no_prompt_cache_is_refused(lm):
    with pytest.raises(CacheError, match="of one row, got 2"):
        PromptCache(lm.new_cache(2))
    with pytest.raises(CacheError, match="got 3 ids and a cache of 0 tokens"):
        PromptCache(lm.new_cache(1), [1, 2, 3])
    with pytest.raises(CacheError, match="interval must be at least 1"):
        PromptCache.new(lm, interval=0)


def test_saved_and_loaded_it_knows_what_was_read(lm, tmp_path):
    cache = small(lm)
    read(lm, cache, ids(1, 2, 3))
    cache.save(tmp_path / "c")
    again = PromptCache.load(tmp_path / "c", lm)
    assert (again.tokens, again.interval) == (cache.tokens, 8)
    assert again.cache.snapshots == cache.cache.snapshots
    for prompt in (ids(1, 2, 3, 4), ids(1, 2)[:35] + ids(5)):
        ours, theirs = read(lm, cache.clone(), prompt), read(lm, again.clone(), prompt)
        assert ours[1] == theirs[1] > 0
        assert torch.equal(ours[0], theirs[0])
    cache.cache.save(tmp_path / "d")
    with pytest.raises(CacheError, match="says nothing of the ids"):
        PromptCache.load(tmp_path / "d", lm)
    cache.tokens[0] = 61
    cache.save(tmp_path / "d")
    with pytest.raises(CacheError, match=r"ids in 0\.\.60"):
        PromptCache.load(tmp_path / "d", lm)


def test_saved_after_an_interrupt_it_holds_what_is_certain(lm, monkeypatch, tmp_path):
    cache = small(lm)
    read(lm, cache, ids(1, 2))

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(lm.model.layers[1], "forward", stop)
        with pytest.raises(KeyboardInterrupt):
            read(lm, cache, ids(1, 2, 3))
    cache.save(tmp_path / "c")
    again = PromptCache.load(tmp_path / "c", lm)
    assert again.tokens == ids(1, 2)
    logits, held = read(lm, again, ids(1, 2, 3))
    assert held == 40
    assert_close(logits, cold(lm, ids(1, 2, 3)), EXACT)

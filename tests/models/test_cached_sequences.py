"""Trimmed, forked, reordered and merged caches give the logits of sequences read anew."""

import pytest
import torch

from closeness import assert_close
from interlace.caches import HybridCache, LatentCache
from interlace.errors import CacheError
from tiny_models import K3_STYLE, ids, model

EXACT = 1e-5
STYLES = pytest.mark.parametrize("style", [{}, K3_STYLE], ids=["kimi_linear", "k3_mixers"])


@pytest.fixture(scope="module")
def lm():
    return model()


@STYLES
def test_b39_after_trim_the_logits_are_those_of_the_shorter_prompt(style):
    lm, tokens = model(**style), ids(13)
    cache = lm.new_cache(2)
    lm(tokens[:, :5], cache=cache)
    cache.snapshot()
    lm(tokens[:, 5:9], cache=cache)
    cache.snapshot()
    lm(tokens[:, 9:], cache=cache)
    for length in (9, 5, 0):
        cache.trim(length)
        other = tokens.flip(0)[:, length:]
        prompt = torch.cat([tokens[:, :length], other], 1)
        assert_close(lm(other, cache=cache), lm(prompt)[:, length:], EXACT, f"trim to {length}")


def test_b40_the_layers_agree_on_their_length_after_a_call_that_failed(lm, monkeypatch):
    tokens, cache = ids(12), lm.new_cache(2)
    lm(tokens[:, :7], cache=cache)
    cache.snapshot()

    def stop(*_, **__):
        raise RuntimeError("no memory")

    with monkeypatch.context() as broken:
        broken.setattr(lm.model.layers[2].self_attn.o_proj, "forward", stop)
        with pytest.raises(RuntimeError, match="no memory"):
            lm(tokens[:, 7:], cache=cache)
    assert cache.layers[2].lengths.tolist() == [12, 12]  # this one has taken the tokens in
    with pytest.raises(CacheError, match=r"failed half-way; trim\(\) or restore\(\)"):
        lm(tokens[:, 7:], cache=cache)
    cache.restore(7)
    assert cache.layers[2].lengths.tolist() == cache.lengths.tolist() == [7, 7]
    assert_close(lm(tokens[:, 7:], cache=cache), lm(tokens)[:, 7:], EXACT)


def test_forks_of_one_prompt_go_their_own_ways(lm):
    prompt, cache = ids(9, rows=1), lm.new_cache(1)
    lm(prompt, cache=cache)
    forks = [cache.clone() for _ in range(3)]
    answers = [ids(4 + n, rows=1) for n in range(3)]
    for step in range(4):
        for fork, answer in zip(forks, answers, strict=True):
            logits = lm(answer[:, step : step + 1], cache=fork)
            whole = lm(torch.cat([prompt, answer[:, : step + 1]], 1))
            assert_close(logits[:, -1], whole[:, -1], EXACT)
    assert_close(
        lm(answers[0], cache=cache)[:, -1], lm(torch.cat([prompt, answers[0]], 1))[:, -1], EXACT
    )


@STYLES
def test_b47_reorder_moves_states_and_latents_and_later_writes_stay_apart(style):
    lm, tokens, order = model(**style), ids(8, rows=3), [2, 0, 0]
    cache = lm.new_cache(3)
    lm(tokens, cache=cache)
    before = cache.clone()
    cache.reorder(torch.tensor(order))
    following = ids(3, rows=3)
    got = lm(following, cache=cache)
    for row, old in enumerate(order):
        alone = before.select([old])
        assert_close(got[row : row + 1], lm(following[row : row + 1], cache=alone), EXACT)
    twins = [{n: x[1:].clone() for n, x in written(layer).items()} for layer in cache.layers]
    for layer in cache.layers:
        for value in layer.tensors.values():
            value[1] = 9.0
    for layer, twin in zip(cache.layers, twins, strict=True):
        assert all(torch.equal(x[2], twin[name][1]) for name, x in written(layer).items())


def written(layer):
    """Tensors of one layer's cache, without room that nothing was written to."""
    return {"latent": layer.view()} if isinstance(layer, LatentCache) else layer.tensors


def test_merged_rows_of_unequal_length_go_on_as_they_would_alone(lm):
    prompts = [ids(n, rows=1) for n in (11, 3, 7)]
    caches = []
    for prompt in prompts:
        caches.append(lm.new_cache(1))
        lm(prompt, cache=caches[-1])
    batch = HybridCache.merge(caches)
    following = ids(5, rows=3)
    lengths = torch.tensor([5, 2, 4])
    first = lm(following, cache=batch, lengths=lengths, last_only=True)
    last = lm(following[:, :1], cache=batch)
    for row, prompt in enumerate(prompts):
        whole = torch.cat([prompt, following[row : row + 1, : lengths[row]]], 1)
        assert_close(first[row], lm(whole)[0, -1:], EXACT, f"row {row}")
        whole = torch.cat([whole, following[row : row + 1, :1]], 1)
        assert_close(last[row], lm(whole)[0, -1:], EXACT, f"row {row}")
        alone = batch.select([row])
        assert alone.length == whole.shape[1]
        assert_close(
            lm(following[:1], cache=alone), lm(torch.cat([whole, following[:1]], 1))[:, -5:], EXACT
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_latents_of_each_dtype_go_through_all_of_it(lm, dtype):
    tokens, cache = ids(10), lm.new_cache(2, dtype=dtype)
    lm(tokens[:, :6], cache=cache)
    cache.snapshot()
    first = lm(tokens[:, 6:], cache=cache)
    cache.trim(6)
    fork = cache.clone()
    fork.reorder([1, 0])
    assert {x.dtype for layer in fork.layers for x in layer.tensors.values()} == {
        dtype,
        torch.float32,
    }
    assert torch.equal(lm(tokens[:, 6:], cache=HybridCache.merge([fork.select([1, 0])])), first)
    assert_close(first, lm(tokens)[:, 6:], 1e-5 if dtype == torch.float32 else 3e-2)

"""Models by depth: the filled cache, families, and transformers over the same latents."""

import pytest
import torch

import interlace
from closeness import assert_close
from interlace.bench import models, peers
from interlace.bench.filled import WARM_TOKENS, Filled, random_latents
from interlace.bench.models import Plan, families, measure
from interlace.caches import LatentCache
from interlace.config import preset
from interlace.errors import ConfigError, InputError, MemoryLimitError
from interlace.generation.memory import Available

TINY = "kimi-linear-tiny"


def test_latents_have_unit_mean_square_and_differ_by_layer():
    config = preset(TINY)
    blocks = list(random_latents(config, 3, 5000, torch.float32))
    assert [b.shape[1] for b in blocks] == [4096, 904]
    latents = torch.cat(blocks, 1)[..., : config.kv_lora_rank]
    assert_close(latents.square().mean(-1), torch.ones(1, 5000), 1e-5)
    other = next(random_latents(config, 2, 5000, torch.float32))
    assert not torch.equal(other[0, 0], blocks[0][0, 0])


def test_a_filled_cache_has_its_depth_its_room_and_states_of_real_tokens():
    lm = interlace.build(TINY).requires_grad_(False)
    filled = Filled(lm, 77, 3)
    assert filled.cache.lengths.tolist() == [77]
    assert filled.cache.capacity == 80
    warm = lm.new_cache(1)
    lm(torch.tensor([WARM_TOKENS]), cache=warm)
    for layer_idx, layer in enumerate(filled.cache.layers):
        if isinstance(layer, LatentCache):
            expected = torch.cat(list(random_latents(lm.config, layer_idx, 77, torch.float32)), 1)
            assert torch.equal(layer.view(), expected)
        else:
            assert torch.equal(layer.state, warm.layers[layer_idx].state)
            assert layer.state.abs().max() > 0
    logits = filled.step()
    assert logits.shape == (256,)
    assert filled.cache.lengths.tolist() == [78]
    assert not torch.equal(logits, Filled(lm, 76, 3).step())


def test_models_of_one_size_are_compared_in_the_same_runs():
    found = families(["mid", "kl2", "mid-mla", "kl2-mla", "kl-moe"])
    assert found == [["mid", "mid-mla"], ["kl2", "kl2-mla"], ["kl-moe"]]
    plan = Plan(models=["mid", "mid-mla", "kl2"], depths=(0, 5), prompts=(7,))
    assert plan.comparisons() == 2 * 3


def test_hybrid_all_mla_and_transformers_in_the_same_runs():
    pytest.importorskip("transformers")
    ticks = []
    plan = Plan(
        models=[TINY, f"{TINY}-mla"],
        depths=(37,),
        prompts=(9, 11),
        against=("transformers",),
        peer_prompts=(9,),
        runs=1,
    )
    found = measure(plan, min_seconds=0.0, tick=lambda: ticks.append(1))
    assert [(r["kind"], r["tokens"]) for r in found] == [
        ("decode", 37),
        ("prefill", 9),
        ("prefill", 11),
    ]
    assert len(ticks) == 3
    theirs = f"transformers {TINY}"
    assert list(found[0]["median_seconds"]) == [TINY, theirs, f"{TINY}-mla"]
    note = found[0]["notes"][theirs]
    # the same latents in both: their logits agree to the rounding of bf16
    assert note["logit_gap"] < 0.05
    assert set(note["tried_seconds"]) == {"eager", "sdpa"}
    assert note["form"] in note["tried_seconds"]
    assert theirs in found[1]["median_seconds"]
    assert theirs not in found[2]["median_seconds"]


class Stranger:
    """A peer whose logits are other ones."""

    version, skipped = "0", {}

    def fill(self, tokens, reserve):
        pass

    def step(self, token):
        return torch.ones(256)

    def close(self):
        pass

    def steps(self):
        return {}

    prompts = steps


def test_a_peer_that_computes_something_else_is_not_timed(monkeypatch):
    monkeypatch.setattr(peers, "require_peers", lambda *_: None)
    monkeypatch.setattr(peers, "open_peer", lambda *_: Stranger())
    plan = Plan(models=[TINY], depths=(5,), against=("transformers",), runs=1)
    with pytest.raises(InputError, match=r"must give our logits for kimi-linear-tiny .* version 0"):
        measure(plan, min_seconds=0.0)


class Twin(Stranger):
    """Our own model as a peer: room for as many steps as it was told, and steps in no time."""

    def __init__(self, lm):
        self.lm = lm

    def fill(self, tokens, reserve):
        self.filled, self.left = Filled(self.lm, tokens, reserve), reserve

    def take(self):
        self.left -= 1
        assert self.left >= 0

    def step(self, token):
        self.take()
        return self.filled.step(token)

    def steps(self):
        return {"only": self.take}


def test_several_peers_are_each_held_to_the_same_step(monkeypatch):
    monkeypatch.setattr(peers, "require_peers", lambda *_: None)
    monkeypatch.setattr(peers, "refusal", lambda *_: None)
    monkeypatch.setattr(
        peers, "open_peer", lambda *_: Twin(interlace.build(TINY, dtype="bfloat16"))
    )
    plan = Plan(models=[TINY], depths=(0, 37), against=("llama.cpp", "transformers"), runs=2)
    for record in measure(plan, min_seconds=0.01):
        for peer in plan.against:
            # a second step of ours would be 0.7 from their first
            assert record["notes"][f"{peer} {TINY}"]["logit_gap"] < 0.02
        # steps that take no time do not use up the room
        assert max(record["calls_per_run"].values()) <= 11


def test_bad_plans_are_refused_before_anything_is_built(monkeypatch):
    monkeypatch.setattr(models, "build", lambda *_, **__: pytest.fail("built a model"))
    with pytest.raises(InputError, match="a model and a depth or a prompt"):
        measure(Plan(models=[TINY]))
    with pytest.raises(ConfigError, match="no preset is named 'nope'"):
        measure(Plan(models=[TINY, "nope"], depths=(1,)))
    with pytest.raises(InputError, match=r"--against must name transformers or llama.cpp, got 'x'"):
        measure(Plan(models=[TINY], depths=(1,), against=("x",)))
    monkeypatch.setattr(models.memory, "available", lambda: Available(10**6, "a test"))
    with pytest.raises(MemoryLimitError, match="measure fewer models at once"):
        measure(Plan(models=[TINY], depths=(100_000,)))


def test_a_step_of_transformers_is_sized_by_the_tokens_it_attends_to(monkeypatch, tmp_path):
    theirs = pytest.importorskip("interlace.bench.peers.transformers")
    interlace.save(interlace.build(TINY), tmp_path)
    sized = []
    monkeypatch.setattr(theirs, "step_bytes", lambda _, tokens, form: sized.append(tokens) or 0)
    peer = theirs.Loaded(tmp_path)
    peer.fill(37, 1)
    peer.steps()
    assert sized == [37, 37]


def test_forms_that_do_not_fit_are_left_out(monkeypatch):
    theirs = pytest.importorskip("interlace.bench.peers.transformers")
    config = preset("kl2")
    # one layer of 32 heads, 320 numbers each, 65,536 tokens
    each = 65_536 * 32 * 320 * 2
    assert theirs.step_bytes(config, 65_536, "eager") == 3 * each
    assert theirs.step_bytes(config, 65_536, "sdpa") == 6 * each
    assert "no kimi_k3" in theirs.refuses(preset("kimi-k3"))
    assert theirs.refuses(config) is None

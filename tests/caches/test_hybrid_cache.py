"""The cache of a whole model: bytes by the formula, lengths, independence."""

import pytest
import torch

from interlace.caches import DeltaState, HybridCache, LatentCache, allocated_bytes
from interlace.config import HybridConfig, sizes
from interlace.config.presets import preset
from interlace.errors import CacheError


def tiny():
    return preset("kimi-linear-tiny")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_bytes_are_those_of_the_formula(dtype):
    config = tiny()
    for capacity in (0, 1, 77):
        c = HybridCache(config, 3, getattr(torch, dtype), "cpu", capacity=capacity)
        assert c.capacity == capacity
        assert c.latent_bytes == sizes.latent_cache_bytes(config, 3, capacity, dtype)
        assert c.state_bytes == sizes.delta_state_bytes(config, 3, dtype)
        assert c.nbytes == sizes.cache_bytes(config, 3, capacity, dtype)


def test_published_sizes_without_allocating():
    c = HybridCache(preset("kimi-linear-48b"), 1, torch.bfloat16, "meta", capacity=10)
    assert c.latent_bytes == 10 * 8_064
    assert c.state_bytes == 40 * 2**20 + 1_474_560
    c = HybridCache(preset("kimi-k3"), 1, torch.bfloat16, "meta", capacity=10)
    assert c.latent_bytes == 10 * 27_648
    assert c.state_bytes == 69 * (6 * 2**20 + 221_184)


def test_layers_follow_the_config():
    config = tiny()
    kinds = [type(x) for x in HybridCache(config, 1, torch.float32, "cpu").layers]
    want = [LatentCache if config.is_global(i) else DeltaState for i in range(len(kinds))]
    assert kinds == want
    assert len(kinds) == config.num_hidden_layers


def test_lengths_advance_per_row_and_the_clone_is_independent():
    c = HybridCache(tiny(), 3, torch.float32, "cpu", capacity=9)
    c.advance(4)
    assert c.lengths.tolist() == [4, 4, 4]
    d = c.clone()
    c.advance(5, torch.tensor([5, 0, 2]))
    c.advance(1)
    assert c.lengths.tolist() == [10, 5, 7]
    assert d.lengths.tolist() == [4, 4, 4]
    assert (d.nbytes, d.capacity) == (c.nbytes, 9)
    assert allocated_bytes(c, d) == c.nbytes + d.state_bytes  # latents shared, states copied
    for e in (c, d):
        for layer in e.layers:
            if isinstance(layer, LatentCache):
                layer.append(torch.ones(3, 1, layer.latent_dim))
    assert allocated_bytes(c, d) == c.nbytes + d.nbytes


def step(c, tokens=1):
    """What a call of the model does to a cache, with numbers that tell it from another one."""
    for layer in c.layers:
        if isinstance(layer, LatentCache):
            layer.append(torch.randn(c.batch, tokens, layer.latent_dim))
        else:
            layer.update(**{name: torch.randn(x.shape) for name, x in layer.tensors.items()})
    c.advance(tokens)
    return c


def contents(c):
    """Everything that can be read from a cache, in values of its own."""
    layers = [
        {"latent": x.view().clone()} if isinstance(x, LatentCache) else clones(x.tensors)
        for x in c.layers
    ]
    return c.lengths.tolist(), c.snapshots, layers


def clones(tensors):
    return {name: x.clone() for name, x in tensors.items()}


def same(a, b):
    return a[:2] == b[:2] and all(
        x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)
        for x, y in zip(a[2], b[2], strict=True)
    )


def new(batch=1, **options):
    return HybridCache(tiny(), batch, torch.float32, "cpu", **options)


def test_snapshots_have_the_bytes_of_the_formula_apart():
    config, c = tiny(), new(3, capacity=20, max_snapshots=2)
    for count in (1, 2, 2):
        step(c, 4).snapshot()
        assert c.snapshot_bytes == sizes.snapshot_bytes(config, 3, count, "float32")
        assert c.nbytes == sizes.cache_bytes(config, 3, 20, "float32") + c.snapshot_bytes
        assert allocated_bytes(c) == c.nbytes
    d = c.clone()
    assert allocated_bytes(c, d) == c.nbytes + d.state_bytes
    c.restore(c.snapshots[0])
    assert c.snapshot_bytes == sizes.snapshot_bytes(config, 3, 1, "float32")
    assert allocated_bytes(c) == c.nbytes


def test_b39_trim_restores_a_snapshot_or_changes_nothing():
    c = step(new(2), 5)
    assert c.snapshot() == 5
    at_five = contents(c)
    step(step(c, 3), 1)
    before = contents(c)
    for length in (8, 6, 4, 1):
        with pytest.raises(
            CacheError, match=r"only to a length that snapshot\(\) kept, which are 5"
        ):
            c.trim(length)
        assert same(contents(c), before)
    c.trim(9)
    assert same(contents(c), before)
    c.trim(5)
    assert same(contents(c), at_five)
    step(c)
    c.restore(5)
    assert same(contents(c), at_five)
    c.trim(0)
    assert same(contents(c), contents(new(2)))


def test_b40_layers_are_trimmed_together_or_not_at_all(monkeypatch):
    c = step(new(), 5)
    c.snapshot()
    step(c, 2)
    assert {x.lengths.item() for x in c.layers if isinstance(x, LatentCache)} == {7}
    c.trim(5)
    assert {x.lengths.item() for x in c.layers if isinstance(x, LatentCache)} == {5}
    step(c, 2)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr(DeltaState, "clear", stop)
        with pytest.raises(KeyboardInterrupt):
            c.trim(0)
    assert not c.whole  # and so no call takes it, until it is trimmed to its end
    with pytest.raises(CacheError, match="must be whole"):
        c.snapshot()
    c.trim(0)
    assert same(contents(c), contents(new()))


def test_trim_forgets_the_snapshots_behind_it_and_no_others():
    c = new(max_snapshots=9)
    for _ in range(6):
        step(c, 2).snapshot()
    c.trim(6)
    assert c.snapshots == (2, 4, 6)
    with pytest.raises(CacheError, match="a snapshot of length 8, but has 2, 4, 6"):
        c.restore(8)
    with pytest.raises(CacheError, match="at most 6, which the cache has, got 8"):
        c.trim(8)
    assert [c.longest_trim(n) for n in (0, 1, 2, 5, 6, 99)] == [0, 0, 2, 4, 6, 6]


def test_a_model_of_latents_alone_is_trimmed_anywhere():
    c = HybridCache(preset("kimi-linear-tiny-mla"), 2, torch.float32, "cpu")
    before = contents(step(c, 7))
    assert c.longest_trim(5) == 5
    c.trim([3, 5])
    assert c.length == (3, 5)
    assert torch.equal(c.layers[0].view()[1], before[2][0]["latent"][1, :5])


def test_rows_are_selected_reordered_and_merged_with_all_they_have():
    c = step(new(3, capacity=5), 2)
    c.snapshot()
    step(c, 3)
    _, _, before = contents(c)
    d = c.select([2, 0, 0, 1], capacity=12)
    assert (d.batch, d.capacity, d.length, d.snapshots) == (4, 12, 5, (2,))
    _, _, after = contents(d)
    for x, y in zip(before, after, strict=True):
        assert all(torch.equal(x[name][[2, 0, 0, 1]], y[name]) for name in x)
    d.restore(2)
    c.restore(2)
    assert same(contents(d), contents(c.select([2, 0, 0, 1])))
    c.reorder([1, 2, 0])
    assert same(contents(c), contents(d.select([3, 0, 1])))


def test_b46_merged_caches_keep_their_lengths():
    a, b = step(new(2), 4), step(new(1), 7)
    c = HybridCache.merge([a, b])
    assert (c.batch, c.length, c.snapshots) == (3, (4, 4, 7), ())
    assert not c.layers[3].view()[:2, 4:].any()
    c.snapshot()
    step(c)
    c.restore([4, 4, 7])
    for part, rows in ((a, [0, 1]), (b, [2])):
        again = c.select(rows)
        assert again.snapshots == (part.length,)
        again._snapshots.forget_behind([0] * len(rows))
        assert same(contents(again), contents(part))


def test_bad_sizes_are_refused():
    with pytest.raises(CacheError, match="batch >= 1"):
        HybridCache(tiny(), 0, torch.float32, "cpu")
    with pytest.raises(CacheError, match="capacity >= 0"):
        HybridCache(tiny(), 1, torch.float32, "cpu", capacity=-1)
    c = HybridCache(tiny(), 2, torch.float32, "cpu")
    with pytest.raises(CacheError, match=r"lengths must be \[2\]"):
        c.advance(3, torch.tensor([1, 2, 3]))


def test_the_config_class_is_the_public_one():
    assert isinstance(tiny(), HybridConfig)


def test_rows_and_lengths_that_are_not_there_are_refused():
    c = step(new(2), 3)
    before = contents(c)
    mistakes = {
        "0..1, got 2": lambda: c.select([0, 2]),
        "0..1, got -1": lambda: c.select(torch.tensor([-1])),
        "at least one number": lambda: c.select([]),
        "needs 2 rows": lambda: c.reorder([0]),
        "at least one cache": lambda: HybridCache.merge([]),
        "of one model, dtype": lambda: HybridCache.merge(
            [c, c.__class__(tiny(), 1, torch.bfloat16, "cpu")]
        ),
        "one for each of 2 rows": lambda: c.trim([1]),
        "got -1": lambda: c.trim(-1),
        "at least one snapshot": lambda: new(max_snapshots=0),
        "must come from lm.new_cache": lambda: c.save("nowhere"),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(CacheError, match=message):
            mistake()
    assert same(contents(c), before)

"""The cache of a whole model: bytes by the formula, lengths, independence."""

import pytest
import torch

from interlace.caches import DeltaState, HybridCache, LatentCache
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
    storages = [
        {x.untyped_storage().data_ptr() for layer in e.layers for x in tensors(layer)}
        for e in (c, d)
    ]
    assert not storages[0] & storages[1]


def tensors(layer):
    if isinstance(layer, LatentCache):
        return [layer._buffer]
    return [layer.state, layer.conv_q, layer.conv_k, layer.conv_v]


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

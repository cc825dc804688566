"""Layers made by themselves, without `build`: start values, caches for one layer, descriptions."""

import pytest
import torch

from interlace import HybridConfig
from interlace.caches import HybridCache
from interlace.errors import InputError
from interlace.layers import Block, GatedMLA, KimiDeltaAttention, MoE

KDA, MLA = HybridConfig.layout(3, ratio=1)
CONFIG = HybridConfig(
    vocab_size=11,
    hidden_size=10,
    num_hidden_layers=3,
    kda_layers=KDA,
    full_attn_layers=MLA,
    num_attention_heads=2,
    qk_nope_head_dim=5,
    qk_rope_head_dim=3,
    v_head_dim=7,
    kv_lora_rank=6,
    kda_num_heads=3,
    kda_head_dim=9,
    intermediate_size=12,
    num_experts=5,
    num_experts_per_token=2,
    moe_intermediate_size=13,
)


@pytest.mark.parametrize("bound", [None, -5.0])
def test_layer_made_alone_is_usable_at_once(bound):
    config = CONFIG.replace(gate_lower_bound=bound)
    x = torch.randn(2, 5, 10)
    for layer in (KimiDeltaAttention(config, 0), GatedMLA(config, 1)):
        cache = HybridCache(config, 2, torch.float32, "cpu").layers[layer.layer_idx]
        whole = layer(x)
        assert whole.isfinite().all()
        split = torch.cat([layer(x[:, :3], cache=cache), layer(x[:, 3:], cache=cache)], 1)
        assert torch.allclose(split, whole, atol=1e-5)
    assert MoE(config)(x).isfinite().all()


def test_layer_on_meta_draws_nothing():
    before = torch.get_rng_state()
    with torch.device("meta"):
        layers = torch.nn.ModuleList([KimiDeltaAttention(CONFIG, 0), MoE(CONFIG)])
    assert all(parameter.is_meta for parameter in layers.parameters())
    assert torch.equal(torch.get_rng_state(), before)


def test_print_shows_the_sizes_of_every_part():
    shown = str(KimiDeltaAttention(CONFIG, 0)) + str(GatedMLA(CONFIG, 1))
    assert "(q_conv1d): ShortConvolution(27, width=4)" in shown
    assert "(o_norm): HeadNorm(9)" in shown
    assert "(kv_a_layernorm): RMSNorm(6, eps=1e-06)" in shown


@pytest.mark.parametrize("offsets", [[0, 3, 8], [0, 8]], ids=str)
def test_b15_boundaries_beside_a_cache_are_refused_and_never_dropped(offsets):
    x, cu_seqlens = torch.randn(1, 8, 10), torch.tensor(offsets)
    caches = HybridCache(CONFIG, 1, torch.float32, "cpu").layers
    for layer in (KimiDeltaAttention(CONFIG, 0), GatedMLA(CONFIG, 1)):
        cache = caches[layer.layer_idx]
        with pytest.raises(InputError, match="cu_seqlens must not be given with a cache"):
            layer(x, cache=cache, cu_seqlens=cu_seqlens)
        with pytest.raises(ValueError, match="must not be given together"):
            layer(x, lengths=torch.tensor([8]), cu_seqlens=cu_seqlens)
        # nothing was taken in
        assert torch.equal(layer(x, cache=cache), layer(x, cache=caches_of_one()[layer.layer_idx]))


def caches_of_one():
    return HybridCache(CONFIG, 1, torch.float32, "cpu").layers


class Noise(torch.nn.Module):
    """A branch that adds N(0, 0.02), whatever it is given."""

    def forward(self, x, **_):
        return torch.randn(x.shape).mul(0.02).to(x.dtype)


def test_b97_seventy_two_additions_in_blocks_do_not_shrink_the_stream():
    block = Block(CONFIG, 1).bfloat16()
    block.self_attn = block.block_sparse_moe = block.mlp = Noise()
    x = torch.ones(64, 512, 10).bfloat16()
    for _ in range(36):
        x = block(x)
    assert x.dtype == torch.bfloat16
    # the mean of these numbers spreads by 0.0003; truncation: 0.83
    assert abs(float(x.double().mean()) - 1) < 2e-3

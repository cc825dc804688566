"""Packed matrices as modules: equal to the expanded ones, untouched by dtypes, untrained."""

import pytest
import torch

import interlace
from closeness import assert_close
from interlace.config.presets import K3_QUANTIZATION
from interlace.config.sizes import packed_expert_bytes, packs_experts, weight_bytes
from interlace.errors import ConfigError
from interlace.layers.packed import PackedLinear
from packed_models import packed_config, packed_model, plain_config
from tiny_models import ids, small


def test_a_packed_matrix_multiplies_as_the_expanded_one_with_gradient():
    torch.manual_seed(0)
    linear = PackedLinear(64, 13)
    x = torch.randn(5, 7, 64, dtype=torch.float64, requires_grad=True)
    weight = linear.expanded(torch.float64)
    assert 0.02 < float(weight.std()) < 0.2, "starts as nn.Linear does"
    y, wanted = linear(x), x @ weight.T
    assert_close(y, wanted, 1e-12)
    dy = torch.randn_like(y)
    (dx,) = torch.autograd.grad(y, x, dy)
    assert_close(dx, dy @ weight, 1e-12)
    assert not list(linear.parameters())


def test_a_change_of_dtype_leaves_codes_and_scales_alone():
    linear = PackedLinear(32, 3)
    before = linear.weight_packed.clone(), linear.weight_scale.clone()
    linear.to(torch.float16).double()
    assert torch.equal(linear.weight_packed, before[0])
    assert torch.equal(linear.weight_scale, before[1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_built_model_holds_what_the_formula_says(dtype):
    config = packed_config()
    lm = interlace.build(config, seed=1, dtype=dtype)
    tensors = [*lm.parameters(), *lm.buffers()]
    assert sum(t.numel() * t.element_size() for t in tensors) == weight_bytes(config, dtype)
    expert = lm.model.layers[1].block_sparse_moe.experts[0]
    assert sum(b.numel() for b in expert.buffers()) == packed_expert_bytes(config) == 9792
    assert 0.015 < float(expert.w1.expanded().float().std()) < 0.025


def test_the_same_seed_gives_the_same_packed_weights():
    a, b = (interlace.build(packed_config(), seed=4) for _ in range(2))
    other = interlace.build(packed_config(), seed=5)
    name = "model.layers.2.block_sparse_moe.experts.2.w2.weight_packed"
    assert torch.equal(a.get_buffer(name), b.get_buffer(name))
    assert not torch.equal(a.get_buffer(name), other.get_buffer(name))


def test_packed_model_equals_the_expanded_one_output_and_gradient():
    packed = packed_model().requires_grad_(True)
    plain = interlace.build(plain_config(), seed=9).requires_grad_(True)
    held = dict(packed.named_parameters())
    with torch.no_grad():
        for name, value in plain.named_parameters():
            stem = name.removesuffix(".weight")
            owner = packed.get_submodule(stem.rpartition(".")[0] if stem == name else stem)
            value.copy_(owner.expanded(value.dtype) if name not in held else held[name])
        for name, value in plain.named_buffers():
            value.copy_(packed.get_buffer(name))
    a, b = packed(ids()), plain(ids())
    assert_close(a, b, 1e-6)
    dy = torch.randn_like(a)
    names = list(held)
    theirs = [plain.get_parameter(name) for name in names]
    ours = torch.autograd.grad(a, [held[name] for name in names], dy, allow_unused=True)
    wanted = torch.autograd.grad(b, theirs, dy, allow_unused=True)
    for name, x, y in zip(names, ours, wanted, strict=True):
        assert (x is None) == (y is None), name
        if x is not None and y is not None:
            assert_close(x, y, 1e-5)


def group(**changes):
    weights = {**K3_QUANTIZATION["config_groups"]["group_0"]["weights"], **changes}
    return {**K3_QUANTIZATION, "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"format": "int-quantized"}, "must be packed experts .* got 'int-quantized'"),
        ({"quant_method": "fp8"}, "must be packed experts .* got None"),
        (group(group_size=16), "group_size of packed experts must be 32, got 16 in group_0"),
        (group(num_bits=8), "num_bits of packed experts must be 4, got 8"),
        (group(type="int"), "type of packed experts must be 'float', got 'int'"),
        ({**K3_QUANTIZATION, "config_groups": {}}, "config_groups, got {}"),
        ({**K3_QUANTIZATION, "config_groups": {"g": 3}}, "num_bits .* got None in g "),
    ],
)
def test_other_quantisation_is_refused_by_name(quantization, words):
    with pytest.raises(ConfigError, match=words):
        interlace.build(packed_config(quantization=quantization))


def test_rows_of_no_whole_groups_are_refused():
    config = packed_config(moe_intermediate_size=80)
    with pytest.raises(ConfigError, match="multiple of 32 long, got 64 and 80"):
        interlace.build(config)


def test_a_dense_model_has_nothing_to_pack():
    dense = dict.fromkeys(("num_experts", "num_experts_per_token", "moe_intermediate_size"))
    dense |= {"num_shared_experts": 0, "first_k_dense_replace": 0}
    config = small(**dense, quantization=K3_QUANTIZATION)
    assert not packs_experts(config)
    assert not [b for b in interlace.build(config).buffers() if b.dtype == torch.uint8]

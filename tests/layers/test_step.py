"""A step in one call: the bits of its parts, on any change of the layer the layer as it is."""

import copy

import pytest
import torch

from interlace.caches import DeltaState
from interlace.config import preset
from interlace.layers import KimiDeltaAttention
from interlace.layers.linear import QuantizedLinear
from interlace.layers.mlp import MLP, activation
from interlace.layers.step import STEP_BACKENDS, StepCall, feed_step, kda_step
from interlace.ops import dispatch
from interlace.ops.native import core

pytestmark = pytest.mark.skipif(core() is None, reason="the native core was not built here")
NAMES = ("default", "kimi-linear-tiny", "kimi-k3-tiny")


def state_of(config, batch):
    heads, width = config.kda_num_heads, config.kda_head_dim
    cache = DeltaState(
        batch, heads, width, width, config.short_conv_kernel_size, "cpu", torch.bfloat16
    )
    windows = [torch.randn_like(w) for w in (cache.conv_q, cache.conv_k, cache.conv_v)]
    cache.update(torch.randn_like(cache.state), *windows)
    return cache


def make(name):
    config = preset(name)
    torch.manual_seed(0)
    return config, KimiDeltaAttention(config, 0).bfloat16()


def parts(layer, x, cache, monkeypatch):
    """The same step by calls of the parts."""
    with monkeypatch.context() as patch:
        patch.setattr("interlace.layers.kda.kda_step", lambda *_: None)
        return layer(x, cache=cache)


def same(a, b):
    return all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (2, 1), (1, 3), (4, 1)])
def test_a_kda_step_has_the_bits_of_its_parts(name, batch, tokens, monkeypatch):
    config, layer = make(name)
    x = torch.randn(batch, tokens, config.hidden_size).bfloat16()
    cache = state_of(config, batch)
    other = cache.clone()
    got = kda_step(layer, x, cache)
    want = parts(layer, x, other, monkeypatch)
    assert torch.equal(got, want)
    assert same(cache, other)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_a_feed_forward_has_the_bits_of_its_parts(name, monkeypatch):
    config = preset(name)
    mlp = MLP(config.hidden_size, 96, activation(config)).bfloat16()
    x = torch.randn(3, 1, config.hidden_size).bfloat16()
    got = feed_step(mlp, x, (mlp.gate_proj, mlp.up_proj, mlp.down_proj), mlp.glu)
    monkeypatch.setattr("interlace.layers.mlp.feed_step", lambda *_: None)
    assert torch.equal(got, mlp(x))


def changes():
    def other_weight(layer):
        layer.q_proj.weight = torch.nn.Parameter(torch.randn_like(layer.q_proj.weight))

    def other_memory(layer):
        layer.o_proj.weight.data = torch.randn_like(layer.o_proj.weight)

    def in_place(layer):
        layer.v_proj.weight.mul_(2)

    def other_module(layer):
        layer.k_proj = QuantizedLinear.of(layer.k_proj.weight, 8)

    def other_epsilon(layer):
        layer.l2_norm_eps = 0.5

    def hook(layer):
        layer.f_a_proj.register_forward_hook(lambda *_: torch.ones_like(_[2]))

    def own_forward(layer):
        layer.b_proj.forward = lambda x: torch.zeros(*x.shape[:-1], layer.num_heads).bfloat16()

    def other_taps(layer):
        layer.q_conv1d.weight.data = -layer.q_conv1d.weight

    def loaded(layer):
        fresh = {name: torch.randn_like(t) for name, t in layer.state_dict().items()}
        layer.load_state_dict(fresh, assign=True)

    return [v for v in locals().values() if callable(v)]


@torch.no_grad()
@pytest.mark.parametrize("change", changes(), ids=lambda change: change.__name__)
def test_a_layer_that_was_changed_is_stepped_as_it_is(change, monkeypatch):
    config, layer = make("default")
    x = torch.randn(1, 1, config.hidden_size).bfloat16()
    cache = state_of(config, 1)
    before = layer(x, cache=cache.clone())
    change(layer)
    got_cache, want_cache = cache.clone(), cache.clone()
    got = layer(x, cache=got_cache)
    assert torch.equal(got, parts(layer, x, want_cache, monkeypatch))
    assert same(got_cache, want_cache)
    assert not torch.equal(got, before)


@torch.no_grad()
def test_a_layer_is_copied_and_forgotten_with_what_was_prepared():
    config, layer = make("default")
    x = torch.randn(1, 1, config.hidden_size).bfloat16()
    cache = state_of(config, 1)
    want = layer(x, cache=cache.clone())
    twin = copy.deepcopy(layer)
    del layer
    assert torch.equal(twin(x, cache=cache.clone()), want)
    twin.o_proj.weight.zero_()
    assert not twin(x, cache=cache.clone()).any()


def test_many_tokens_and_other_dtypes_take_the_parts():
    call = StepCall(5, native=None)
    assert dispatch.choose(STEP_BACKENDS, call).name == "step.calls"
    assert dispatch.choose(STEP_BACKENDS, StepCall(5, True, None)).name == "step.native"
    config, layer = make("default")
    cache = state_of(config, 1)
    with torch.no_grad():
        x = torch.randn(1, 1, config.hidden_size)
        assert kda_step(layer, x, cache) is None
        assert kda_step(layer.float(), x.bfloat16(), cache) is None
    mlp = MLP(32, 64).bfloat16()
    modules = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    rows = torch.randn(2, 32).bfloat16()
    assert feed_step(mlp, rows, modules, mlp.glu) is None, "a gradient is asked for"
    with torch.no_grad():
        assert feed_step(mlp, rows, modules, lambda gate, up: gate) is None
        assert feed_step(mlp, torch.randn(40, 32).bfloat16(), modules, mlp.glu) is None


def test_bad_layers_are_refused_by_name():
    native = core()
    w = torch.ones(8, 4).bfloat16()
    with pytest.raises(ValueError, match=r"MlpLayer: down must be|down has D = 8"):
        native.MlpLayer([w, w, w], 4, "swish")
    with pytest.raises(ValueError, match="weights must be gate, up and down"):
        native.MlpLayer([w], 4, "swish")
    held = native.MlpLayer([w, w, torch.ones(4, 8).bfloat16()], 4, "swish")
    with pytest.raises(ValueError, match="x has D = 5 where the layer has 4"):
        held.step(torch.ones(1, 5).bfloat16(), torch.ones(1, 5).bfloat16())
    with pytest.raises(ValueError, match="KdaLayer: weights must be q, k"):
        native.KdaLayer([w], [w], w, w, w, 4, 0.0, 1e-5, 1e-6)

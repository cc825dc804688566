"""The delta state: zeros at first, float32 always, own memory."""

import pytest
import torch

from interlace.caches import DeltaState
from interlace.errors import CacheError

B, H, K, V, W = 2, 3, 5, 4, 4


def cache(dtype=torch.bfloat16):
    return DeltaState(B, H, K, V, W, "cpu", dtype)


def fresh(dtype=torch.bfloat16):
    windows = [torch.randn(B, W - 1, n).to(dtype) for n in (H * K, H * K, H * V)]
    return [torch.randn(B, H, K, V), *windows]


def parts(c):
    return [c.state, c.conv_q, c.conv_k, c.conv_v]


def test_b37_a_new_cache_is_all_zeros():
    assert all(not x.any() for x in parts(cache()))


def test_b26_the_state_is_float32_beside_bfloat16_activations():
    c = cache()
    assert [x.dtype for x in parts(c)] == [torch.float32] + 3 * [torch.bfloat16]
    c.update(*[x.bfloat16() for x in fresh()])
    assert [x.dtype for x in parts(c)] == [torch.float32] + 3 * [torch.bfloat16]
    assert cache(torch.float64).state.dtype == torch.float64


def test_b26_a_float32_state_remembers_over_a_long_generation():
    # 4,096 tokens of alpha = 0.999, beta = 0.05 on one key
    c = DeltaState(1, 1, 1, 1, 2, "cpu", torch.bfloat16)
    window = torch.zeros(1, 1, 1).bfloat16()
    exact, v = 0.0, torch.rand(4096).tolist()
    for value in v:
        exact = 0.999 * exact + 0.05 * (value - 0.999 * exact)
        S = 0.999 * c.state
        c.update(S + 0.05 * (value - S), window, window, window)
    assert abs(c.state.item() - exact) / abs(exact) < 1e-5


def test_nbytes_are_the_storages():
    c, want = cache(), B * H * K * V * 4 + B * (W - 1) * (2 * H * K + H * V) * 2
    assert c.nbytes == want
    part = torch.randn(B + 3, W - 1, H * K).bfloat16()[1 : 1 + B]
    state, _, conv_k, conv_v = fresh()
    c.update(state, part, conv_k, conv_v)
    assert c.nbytes == want  # a window on something larger is copied, not held
    assert torch.equal(c.conv_q, part)


def test_update_leaves_what_was_read_before_and_what_was_given():
    c, new = cache(), fresh()
    old = c.state
    before = [x.clone() for x in new]
    c.update(*new)
    assert not old.any()
    assert all(torch.equal(a, b) for a, b in zip(parts(c), before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(new, before, strict=True))


def test_the_clone_is_independent():
    c, new = cache(), fresh()
    c.update(*[x.clone() for x in new])
    d = c.clone()
    for x in parts(d):
        x.zero_()
    assert all(torch.equal(a, b) for a, b in zip(parts(c), new, strict=True))
    assert d.nbytes == c.nbytes


def test_inference_mode_and_ordinary_mode_can_take_turns():
    c = cache()
    with torch.inference_mode():
        c.update(*[x + 1 for x in fresh()])
    weight = torch.ones(V, requires_grad=True)
    (c.state * weight).sum().backward()
    assert torch.isfinite(weight.grad).all()


def test_shapes_of_another_layer_are_refused_before_anything_changes():
    c, new = cache(), fresh()
    with pytest.raises(CacheError, match=r"conv_v must be \[2, 3, 12\]"):
        c.update(new[0], new[1], new[2], new[1])
    assert not c.state.any()
    with pytest.raises(CacheError, match="at least 1"):
        DeltaState(B, H, 0, V, W, "cpu", torch.float32)

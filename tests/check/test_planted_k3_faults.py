"""Faults planted in the K3 parts of the fast way: the check turns red and names the layer."""

from dataclasses import replace

import pytest
import torch

from interlace.check import check_model, draw_rows
from interlace.layers import linear, moe, packed, step
from interlace.layers import residual as streams
from interlace.layers.residual import BlockStreams
from interlace.models.hybrid import Stack
from interlace.ops.linear import Packed
from interlace.ops.mxfp4 import mxfp4_linear
from interlace.ops.residual import make_candidate, read_bank
from packed_models import packed_model
from tiny_models import K3, model

ROWS = draw_rows(61, 9)
# as wide as the stream, so that a mistake of the two is no error of shapes
LATENT = {"routed_expert_hidden_size": 40, "num_experts": 5, "num_experts_per_token": 2}


@pytest.fixture(scope="module")
def lm():
    return model(**{**K3, **LATENT})


def open_with_the_mixture(self, queries):
    bank = (*self.bank, make_candidate(self.x, self.eps))
    reads = read_bank(bank, queries.to(bank[0].value.dtype))
    return replace(self, live=None, bank=bank, reads=reads)


def directions_mixed(read, bank, live, eps):
    """What is scored is mixed too, in place of the streams as they are."""
    bank = [c._replace(value=c.value * c.scale[..., None] * read.query) for c in bank]
    value, scale = make_candidate(live, eps)
    share = torch.sigmoid((value @ read.query) * scale - read.log_sum)
    mixed = sum(s[..., None] * c.value for s, c in zip(read.shares, bank, strict=True))
    return torch.lerp(mixed, value * scale[..., None] * read.query, share[..., None])


mixed_stack, latent_sum = Stack._mixed, moe.dispatch


def without_the_last(self, *args, **context):
    last = {}
    hook = self.layers[-1].register_forward_hook(lambda *call: last.update(out=call[-1]))
    mixed_stack(self, *args, **context)
    hook.remove()
    return last["out"].live


def blocks_of_sublayers(self, x, size, *args, **context):
    return mixed_stack(self, x, size // 2, *args, **context)


def scores_in_bfloat16(x, weight):
    return torch.sigmoid(x.bfloat16() @ weight.bfloat16().T).float()


def normed_before_the_sum(x, indices, weights, expert):
    def normed(e, tokens):
        y = expert(e, tokens)
        return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)

    return latent_sum(x, indices, weights, normed)


forward = moe.MoE.forward


def shared_on_the_latent(self, x):
    shared, self.shared_experts = self.shared_experts, None
    try:
        return forward(self, x) + shared(self.routed_expert_down_proj(x))
    finally:
        self.shared_experts = shared


STREAM = "stream after the layer"
# blocks begin at layers 0, 2 and 4; the first layer with experts is 1
FAULTS = {
    "mixture banked in place of the raw stream": (
        (2, STREAM),
        (BlockStreams, "open", open_with_the_mixture),
    ),
    "last mixture left out": ((None, "logits"), (Stack, "_mixed", without_the_last)),
    "blocks counted in sublayers": ((1, STREAM), (Stack, "_mixed", blocks_of_sublayers)),
    "directions mixed in place of streams": ((0, STREAM), (streams, "fold_live", directions_mixed)),
    "router in bf16": ((1, "experts"), (moe, "router_scores", scores_in_bfloat16)),
    "norm before the sum": ((1, "experts"), (moe, "dispatch", normed_before_the_sum)),
    "shared experts on the latent": ((1, "experts"), (moe.MoE, "forward", shared_on_the_latent)),
}
"""The first place that is red, and what replaces what."""


def test_without_a_fault_all_is_green(lm):
    report = check_model(lm, ROWS)
    assert report.ok, report.first_bad.describe()


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_red_and_the_layer_is_named(lm, monkeypatch, fault):
    place, (owner, name, value) = FAULTS[fault]
    monkeypatch.setattr(owner, name, value)
    bad = check_model(lm, ROWS, saved=False, fail_fast=True).first_bad
    assert bad is not None
    assert (bad.layer, bad.kind, bad.way) == (*place, "one call")
    assert not bad.note, bad.note
    # no fault that could pass for rounding
    assert bad.error > 100 * bad.bound


def swapped_nibbles(x, codes, scale):
    return mxfp4_linear(x, (codes << 4) | (codes >> 4), scale)


def swapped_in_the_core(module):
    if not isinstance(module, packed.PackedLinear):
        return module.weight
    codes = module.weight_packed
    return Packed((codes << 4) | (codes >> 4), module.weight_scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_packed_experts_are_checked_from_their_bytes(monkeypatch, dtype):
    lm = packed_model(dtype)
    report = check_model(lm, ROWS)
    assert report.ok, report.first_bad.describe()
    # both tensors of a matrix must come back, and do
    assert [f.error for f in report.findings if f.part == "weights"] == [0.0]
    monkeypatch.setattr(packed, "mxfp4_linear", swapped_nibbles)
    monkeypatch.setattr(linear, "_matrix", swapped_in_the_core)
    step._PREPARED.clear()  # what the core holds already is right
    bad = check_model(lm, ROWS, saved=False, fail_fast=True).first_bad
    assert bad is not None
    assert (bad.layer, bad.kind, bad.way, bad.note) == (1, "experts", "one call", "")
    assert bad.error > 10 * bad.bound

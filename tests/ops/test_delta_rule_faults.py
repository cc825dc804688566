"""Reported faults of other delta-rule libraries, as tests of this one; the id is in each name."""

from itertools import pairwise

import pytest
import torch
from delta_rule_calls import NAMES, exact, gradients, make_call

from closeness import assert_close, error
from interlace.errors import ShapeError
from interlace.ops.delta_rule import kda, kda_chunk, kda_recurrent, kda_reference, kda_step
from interlace.ops.delta_rule.packing import check_call


def test_b04_strong_decay_has_a_finite_and_right_gradient():
    for min_decay in (None, -5.0):
        call = make_call(1, 64, 2, 16, 8, decay=-5.0, dtype=torch.float32)[:5]
        single = [x.requires_grad_() for x in call]
        double = [x.detach().double().requires_grad_() for x in call]
        got = torch.autograd.grad(kda_chunk(*single, min_decay=min_decay)[0].sum(), single)
        out, _ = kda_reference(*double, compute_dtype=torch.float64)
        for name, a, b in zip(NAMES, got, torch.autograd.grad(out.sum(), double), strict=False):
            assert_close(a, b, 1e-4, name)  # infinite when anything is not finite


@pytest.mark.parametrize("T", [1, 2, 63, 64, 65, 127, 500, 1000])
def test_b05_state_after_any_length_reads_no_memory_behind_the_input(T):
    long = make_call(1, T + 64, 1, 4, 3, dtype=torch.float32, lowest=-1.0)
    for x in long[:5]:
        x[:, T:] = 1e30
    call = [x[:, :T] for x in long[:5]] + [long[5]]
    want, state = exact(call)
    real = torch.tensor([T])
    for x, options in (
        (call, {}),
        (call, {"min_decay": -1.0}),
        (call, {"cu_seqlens": torch.tensor([0, T])}),
        (long, {"lengths": real}),  # here what lies behind is handed in, as padding
    ):
        out, last = kda_chunk(*x[:5], state=call[5], **options)
        assert_close(out[:, :T], want, 1e-5, f"{options}")
        assert_close(last, state, 1e-5, f"{options}")


@pytest.mark.parametrize(
    ("dtype", "allowed"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["f64", "f32"]
)
@pytest.mark.parametrize("run", [kda_recurrent, kda_chunk, kda])
def test_b09_single_tokens_packed_with_a_long_prefill(run, dtype, allowed):
    offsets = [0, 1, 2, 66, 67]
    call = make_call(1, 67, 2, 7, 5, dtype=dtype, lowest=-20.0)
    state = torch.randn(4, 2, 7, 5, dtype=dtype)
    out, last = run(*call[:5], state=state, cu_seqlens=torch.tensor(offsets))
    for s, (a, b) in enumerate(pairwise(offsets)):
        want, after = exact([x[:, a:b] for x in call[:5]] + [state[s : s + 1]])
        assert_close(out[:, a:b], want, allowed, f"segment {s}")
        assert_close(last[s : s + 1], after, allowed, f"state {s}")


def test_b11_fewer_gate_heads_than_value_heads_are_refused_by_name():
    q, k, v, g, beta, _ = make_call(1, 70, 4, 16, 16)
    with pytest.raises(ShapeError, match=r"g must be \[1, 70, 4, 16\].*got \[1, 70, 2, 16\]"):
        check_call(q, k, v, g[:, :, :2], beta, None, None, None)
    with pytest.raises(ShapeError, match=r"v must be \[1, 70, 2, 16\].*got \[1, 70, 4, 16\]"):
        check_call(*(x[:, :, :2] for x in (q, k)), v, g[:, :, :2], beta[:, :, :2], *[None] * 3)
    keys = {"q": q[:, :, :2], "k": k[:, :, :2]}
    for few in (
        {"q": q[:, :, :2]},
        {"g": g[:, :, :2]},
        {"beta": beta[:, :, :2]},
        keys,
        {**keys, "g": g[:, :, :2]},
        {**keys, "g": g[:, :, :2], "beta": beta[:, :, :2]},
    ):
        arguments = {"q": q, "k": k, "v": v, "g": g, "beta": beta} | few
        for run in (kda_recurrent, kda_chunk, kda):
            with pytest.raises((ShapeError, TypeError)):  # the annotations may speak first
                run(**arguments)


@pytest.mark.parametrize("K", [1, 3, 60, 96, 100, 127])
def test_b13_key_widths_that_are_no_power_of_two(K):
    call = make_call(1, 35, 2, K, 3, dtype=torch.float32)
    count = call[3].numel()
    memory = torch.full((count + 256,), 1e4)
    memory[:count] = call[3].flatten()
    call[3] = memory[:count].view(call[3].shape)
    want, state = exact(call)
    for run, options in ((kda_recurrent, {}), (kda_chunk, {}), (kda_chunk, {"min_decay": -5.0})):
        out, last = run(*call[:5], state=call[5], **options)
        assert_close(out, want, 1e-5)
        assert_close(last, state, 1e-5)


@pytest.mark.parametrize("return_state", [False, True], ids=["in-place", "repacked"])
@pytest.mark.parametrize("min_decay", [None, -5.0], ids=lambda d: f"least{d}")
def test_b14_packed_documents_do_not_leak_state(min_decay, return_state):
    offsets = [0, 5, 6, 8, 72, 75]
    leaves = [x.requires_grad_() for x in make_call(1, 75, 2, 7, 5)[:5]]
    cu = torch.tensor(offsets)
    out, last = kda_chunk(
        *leaves, cu_seqlens=cu, min_decay=min_decay, return_state=return_state, chunk=32
    )
    weight = torch.randn_like(out)
    got = torch.autograd.grad((out * weight).sum(), leaves)
    for s, (a, b) in enumerate(pairwise(offsets)):
        alone = [x[:, a:b].detach().requires_grad_() for x in leaves]
        want, state = kda_reference(*alone, compute_dtype=torch.float64)
        assert_close(out[:, a:b], want, 1e-10, f"segment {s}")
        if return_state:
            assert_close(last[s : s + 1], state, 1e-10, f"state {s}")
        grads = torch.autograd.grad((want * weight[:, a:b]).sum(), alone)
        for name, x, y in zip(NAMES, got, grads, strict=False):
            assert_close(x[:, a:b], y, 1e-10, f"gradient of {name}, segment {s}")
    leaking, _ = kda_chunk(*leaves, min_decay=min_decay)
    assert error(leaking[:, 8:], out[:, 8:]) > 1e-2


def test_b14_a_change_in_one_document_changes_no_bit_of_the_next():
    call = make_call(2, 40, 2, 7, 5, dtype=torch.float32)[:5]
    cu = torch.tensor([0, 7, 40, 51, 80])
    for min_decay in (None, -5.0):
        run = {"cu_seqlens": cu, "min_decay": min_decay, "return_state": False}
        out, _ = kda_chunk(*call, **run)
        changed = [x.clone() for x in call]
        changed[2][0, :7] = 100.0
        changed[1][1, :11] *= -0.5
        again, _ = kda_chunk(*changed, **run)
        assert torch.equal(again[0, 7:], out[0, 7:])
        assert torch.equal(again[1, 11:], out[1, 11:])
        assert not torch.equal(again[0, :7], out[0, :7])


def test_b15_boundaries_are_never_taken_from_two_places():
    call = make_call(1, 8, 2, 5, 3)[:5]
    for run in (kda_recurrent, kda_chunk, kda):
        with pytest.raises(ShapeError, match="lengths and cu_seqlens"):
            run(*call, lengths=torch.tensor([8]), cu_seqlens=torch.tensor([0, 3, 8]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_b16_offsets_that_do_not_cover_the_call_are_refused(dtype):
    call = make_call(1, 9, 2, 5, 3)
    for offsets in ([0, 8], [1, 9], [0, 5, 3, 9], [0, 10]):
        for run in (kda_recurrent, kda_chunk, kda):
            for options in ({}, {"return_state": False}):
                if options and run is kda_recurrent:
                    continue
                with pytest.raises(ShapeError, match="start at 0, never decrease and end at"):
                    run(*call[:5], cu_seqlens=torch.tensor(offsets, dtype=dtype), **options)
    rows = make_call(2, 9, 2, 5, 3)
    with pytest.raises(ShapeError, match="each of the 2 rows"):
        kda_chunk(*rows[:5], cu_seqlens=torch.tensor([0, 18], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["i32", "i64"])
def test_b16_an_empty_segment_passes_its_state_through(dtype):
    call = make_call(1, 9, 2, 5, 3)
    state = torch.randn(3, 2, 5, 3, dtype=torch.float64)
    for run in (kda_recurrent, kda_chunk, kda):
        cu = torch.tensor([0, 0, 9, 9], dtype=dtype)
        out, last = run(*call[:5], state=state, cu_seqlens=cu)
        want, after = exact([*call[:5], state[1:2]])
        assert torch.equal(last[0], state[0])
        assert torch.equal(last[2], state[2])
        assert_close(out, want, 1e-10)
        assert_close(last[1:2], after, 1e-10)
    out, _ = kda_chunk(*call[:5], cu_seqlens=torch.tensor([0, 0, 9, 9]), return_state=False)
    assert_close(out, kda_recurrent(*call[:5])[0], 1e-10)


@pytest.mark.parametrize("second", [768, 783])
@pytest.mark.parametrize("return_state", [False, True], ids=["in-place", "repacked"])
def test_b16_gradients_of_a_second_segment_of_any_length(second, return_state):
    T = 640 + second
    leaves = [x.requires_grad_() for x in make_call(1, T, 1, 4, 3, lowest=-1.0)[:5]]
    cu = torch.tensor([0, 640, T])
    out, _ = kda_chunk(*leaves, cu_seqlens=cu, return_state=return_state, min_decay=-1.0)
    weight = torch.randn_like(out)
    got = torch.autograd.grad((out * weight).sum(), leaves)
    for a, b in ((0, 640), (640, T)):
        alone = [x[:, a:b].detach().requires_grad_() for x in leaves]
        want, _ = kda_chunk(*alone)
        grads = torch.autograd.grad((want * weight[:, a:b]).sum(), alone)
        assert_close(out[:, a:b], want, 1e-10)
        for name, x, y in zip(NAMES, got, grads, strict=False):
            assert_close(x[:, a:b], y, 1e-10, name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("run", [kda_recurrent, kda_chunk])
def test_b22_strides_do_not_matter(run, name):
    call = make_call(2, 19, 3, 6, 5)
    want = gradients(run, call)
    j = NAMES.index(name)
    x = call[j]
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), 7.0, dtype=x.dtype)
    wide[..., ::2] = x
    for strided in (x.transpose(1, 2).contiguous().transpose(1, 2), wide[..., ::2]):
        assert not strided.is_contiguous()
        got = gradients(run, [*call[:j], strided, *call[j + 1 :]])
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, 1e-12, name)


def test_b22_an_expanded_upstream_gradient():
    leaves = [x.requires_grad_() for x in make_call(2, 19, 3, 6, 5)[:5]]
    for run in (kda_recurrent, kda_chunk):
        results = run(*leaves)
        for result in results:
            one = torch.ones(1, dtype=result.dtype).expand_as(result)
            turned = torch.randn_like(result.transpose(0, 1).contiguous()).transpose(0, 1)
            double = torch.full((*result.shape[:-1], 2 * result.shape[-1]), 7.0).double()
            double[..., ::2] = torch.randn_like(result)
            for upstream in (one, turned, double[..., ::2]):
                assert not upstream.is_contiguous()
                before = upstream.clone()
                clean = upstream.contiguous()
                want = torch.autograd.grad(
                    result, leaves, clean, retain_graph=True, allow_unused=True
                )
                got = torch.autograd.grad(
                    result, leaves, upstream, retain_graph=True, allow_unused=True
                )
                assert torch.equal(upstream, before)
                for a, b in zip(got, want, strict=True):
                    if a is not None or b is not None:
                        assert_close(a, b, 1e-12)


@pytest.mark.parametrize("run", [kda_recurrent, kda_chunk, kda])
def test_b23_no_argument_is_modified_and_a_second_call_is_equal_to_the_bit(run):
    call = make_call(2, 21, 3, 6, 5, dtype=torch.float32)
    before = [x.clone() for x in call]
    first, second = gradients(run, call), gradients(run, call)
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    lengths, packed = torch.tensor([21, 3]), torch.tensor([0, 21, 30, 42])
    ways = [{"state": call[5], "lengths": lengths}, {"cu_seqlens": packed}]
    if run is not kda_recurrent:
        ways += [{"cu_seqlens": packed, "return_state": False}, {"min_decay": -5.0}]
    for options in ways:
        leaves = [x.detach().requires_grad_() for x in call[:5]]
        results = [[x for x in run(*leaves, **options) if x is not None] for _ in "ab"]
        upstream = [torch.randn_like(x) for x in results[0]]
        kept = [x.clone() for x in upstream]
        grads = [torch.autograd.grad(x, leaves, upstream) for x in results]
        for a, b in zip([*results[0], *grads[0]], [*results[1], *grads[1]], strict=True):
            assert torch.equal(a, b), options
        assert all(torch.equal(a, b) for a, b in zip(upstream, kept, strict=True)), options
    assert torch.equal(lengths, torch.tensor([21, 3]))
    assert torch.equal(packed, torch.tensor([0, 21, 30, 42]))
    step = [x[:, :1] for x in call[:5]]
    kda_step(*step, state=call[5])
    for name, a, b in zip(NAMES, call, before, strict=True):
        assert torch.equal(a, b), name


def test_b26_a_float32_state_survives_four_thousand_steps_of_bf16():
    T, decay = 4096, float(torch.tensor(0.999).log())
    call = make_call(1, T, 1, 6, 5, decay=decay, dtype=torch.bfloat16)
    call[3] = torch.full((1, T, 1, 6), decay)
    call[4] = torch.full((1, T, 1), 0.05)
    call[5] = torch.zeros_like(call[5])
    _, want = exact(call)
    _, chunked = kda_chunk(*call[:5])
    _, looped = kda_recurrent(*call[:5])
    stepped = None
    for token in zip(*(x.split(1, 1) for x in call[:5]), strict=True):
        _, stepped = kda_step(*token, state=stepped)
    for got in (chunked, looped, stepped):
        assert got.dtype == torch.float32
        assert float((got - want).norm() / want.norm()) < 1e-3


LAYOUTS = {
    "plain": {},
    "padded": {"lengths": torch.tensor([37, 11])},
    "packed": {"cu_seqlens": torch.tensor([0, 37, 40, 74])},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("run", [kda_recurrent, kda_chunk])
def test_b98_no_decay_is_a_decay_of_zero(run, layout):
    options = LAYOUTS[layout]
    call = make_call(2, 37, 3, 6, 5)
    if layout == "packed":
        call[5] = torch.randn(3, *call[5].shape[1:], dtype=torch.float64)
    call[3].zero_()
    want = gradients(run, call, **options)
    leaves = [x.requires_grad_() for x in call]
    q, k, v, _, beta, state = leaves
    out, last = run(q, k, v, None, beta, state=state, **options)
    assert_close(out, want[0], 1e-12)
    assert_close(last, want[1], 1e-12)
    weights = [
        torch.linspace(-1, 1, x.numel(), dtype=x.dtype).cos().view(x.shape) for x in (out, last)
    ]
    loss = (out * weights[0]).sum() + (last * weights[1]).sum()
    got = torch.autograd.grad(loss, [q, k, v, beta, state])
    for name, a, b in zip(["q", "k", "v", "beta", "state"], got, want[2:5] + want[6:], strict=True):
        assert_close(a, b, 1e-12, name)

"""Every form of the delta rule against the float64 recurrence, and what is promised to the bit."""

import pytest
import torch
import torch.nn.functional as F
from delta_rule_calls import NAMES, exact, gradients, make_call
from hypothesis import given, settings
from hypothesis import strategies as st

from closeness import assert_close, assert_no_worse, error
from interlace.errors import ShapeError
from interlace.ops.delta_rule import (
    kda,
    kda_chunk,
    kda_gate,
    kda_recurrent,
    kda_reference,
    kda_reference_stages,
    kda_step,
)

CHUNK = 32
DECAYS = [0.0, -1e-4, -1.0, -3.0, -5.0, -20.0, -100.0, None]
RESULTS = ("out", "last", *NAMES)


# ---- hand-checkable values


def test_one_token_by_hand():
    """Oracle: q = k = [1, 0], v = [2, 3], beta = 1/2, no decay, empty state, scale 2**-1/2."""
    one = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    v, beta = torch.tensor([2.0, 3.0]).view(1, 1, 1, 2), torch.full((1, 1, 1), 0.5)
    for run in (kda_reference, kda_recurrent, kda_step, kda_chunk, kda):
        out, state = run(one, one, v, torch.zeros_like(one), beta)
        assert_close(out.flatten(), torch.tensor([0.70711, 1.06066]), 1e-5, run.__name__)
        assert state[0, 0].tolist() == [[1.0, 1.5], [0.0, 0.0]], run.__name__


def test_decay_comes_before_the_delta_read():
    """Oracle: S0 = [[1, 0], [0, 0]], alpha = [1/2, 1], k = v = [1, 0], beta = 1/2 give 0.75."""
    k = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    g = torch.tensor([0.5, 1.0]).log().view(1, 1, 1, 2)
    state = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).view(1, 1, 2, 2)
    for run in (kda_reference, kda_recurrent, kda_step, kda_chunk, kda):
        _, last = run(k, k, k, g, torch.full((1, 1, 1), 0.5), state=state)
        assert_close(last[0, 0, 0, 0], torch.tensor(0.75), 1e-7, run.__name__)


def test_readout_is_a_product_of_transitions_newest_on_the_left():
    """Oracle: the README's product in float64; the opposite order of factors is another rule."""
    q, k, v, g, beta, _ = make_call(1, 6, 1, 5, 3, lowest=-1.0)
    out, _ = kda_reference(q, k, v, g, beta, scale=1.0, compute_dtype=torch.float64)
    eye = torch.eye(5, dtype=torch.float64)

    def readout(delta_last: bool) -> torch.Tensor:
        rows = []
        for t in range(6):
            row = torch.zeros(3, dtype=torch.float64)
            for i in range(t + 1):
                product = eye
                for j in range(i + 1, t + 1):
                    erase = eye - beta[0, j, 0] * torch.outer(k[0, j, 0], k[0, j, 0])
                    alpha = torch.diag(g[0, j, 0].exp())
                    M = erase @ alpha if delta_last else alpha @ erase
                    product = M @ product
                row += beta[0, i, 0] * (q[0, t, 0] @ product @ k[0, i, 0]) * v[0, i, 0]
            rows.append(row)
        return torch.stack(rows)

    assert_close(readout(delta_last=True), out[0, :, 0], 1e-12)
    assert error(readout(delta_last=False), out[0, :, 0]) > 1e-2


@pytest.mark.parametrize("A_log", [-2.0, 0.0, 1.7])
def test_bounded_gate_by_hand(A_log):
    """Oracle: lower_bound = -5 and a logit of 0 give g = -2.5, alpha = 0.0820850."""
    g = kda_gate(torch.full((1, 1, 1, 1), -0.5), torch.tensor([A_log]), torch.tensor([[0.5]]), -5.0)
    assert g.item() == -2.5
    assert_close(g.exp().flatten(), torch.tensor([0.0820850]), 1e-7)


def test_unbounded_gate_by_hand():
    """Oracle: A_log = 0 and a logit of 0 give g = -0.693147, alpha = 1/2."""
    g = kda_gate(torch.full((1, 1, 1, 1), -0.5), torch.zeros(1), torch.tensor([[0.5]]))
    assert_close(g.flatten(), torch.tensor([-0.693147]), 1e-6)


# ---- the gate


@pytest.mark.parametrize("lower_bound", [None, -5.0])
def test_gate_and_its_gradients_against_float64(lower_bound):
    z = torch.randn(2, 7, 3, 5).mul_(3.0)
    z[0, 0, 0] = torch.tensor([-200.0, -30.0, 19.9, 20.1, 200.0])
    A_log, dt_bias = torch.tensor([-1.0, 0.3, 2.0]), torch.randn(3, 5)

    def plain(z, A_log, dt_bias):
        x, a = z + dt_bias, A_log.exp()[:, None]
        if lower_bound is not None:
            return lower_bound / (1.0 + (-a * x).exp())
        return -a * torch.where(x > 20, x, x.clamp(max=20).exp().log1p())

    single = [x.requires_grad_() for x in (z, A_log, dt_bias)]
    double = [x.detach().double().requires_grad_() for x in single]
    got, want = kda_gate(*single, lower_bound=lower_bound), plain(*double)
    assert got.dtype == torch.float32
    assert_close(got, want, 1e-6)
    pairs = zip(
        torch.autograd.grad(got.sum(), single), torch.autograd.grad(want.sum(), double), strict=True
    )
    for name, (a, b) in zip(("z", "A_log", "dt_bias"), pairs, strict=True):
        assert_close(a, b, 1e-5, name)


def test_gate_works_in_float32_from_bf16_logits_and_is_no_clamp():
    z = torch.randn(1, 9, 2, 3).bfloat16()
    A_log, dt_bias = torch.zeros(2), torch.randn(2, 3)
    g = kda_gate(z, A_log, dt_bias)
    assert g.dtype == torch.float32
    assert torch.equal(g, kda_gate(z.float(), A_log, dt_bias))
    bounded = kda_gate(z, A_log, dt_bias, -5.0)
    assert error(bounded, g.clamp(min=-5.0)) > 0.1


# ---- every form against the recurrence


@pytest.mark.parametrize("T", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
@pytest.mark.parametrize("same_keys", [False, True], ids=["keys", "same-keys"])
@pytest.mark.parametrize("decay", DECAYS, ids=lambda d: f"g{d}")
def test_chunk_in_float32_is_as_exact_as_the_recurrence(decay, same_keys, T):
    call = make_call(2, T, 2, 20, 12, decay=decay, same_keys=same_keys, dtype=torch.float32)
    want = gradients(kda_reference, [x.double() for x in call], compute_dtype=torch.float64)
    plain = kda_reference(*call[:5], state=call[5])
    bounded = decay is None or decay >= -5.0
    for min_decay in (None, -5.0) if bounded else (None,):
        got = gradients(kda_chunk, call, chunk=CHUNK, min_decay=min_decay)
        for name, a, b in zip(RESULTS[2:], got[2:], want[2:], strict=True):
            assert_close(a, b, 1e-4, f"gradient of {name}, min_decay={min_decay}")
        for name, a, b, c in zip(RESULTS, got[:2], plain, want[:2], strict=False):
            assert_no_worse(a, plain=b, exact=c, what=f"{name}, min_decay={min_decay}")
            assert_close(a, c, 1e-5, name)


@pytest.mark.parametrize("min_decay", [None, -5.0, -1.0], ids=lambda d: f"least{d}")
def test_chunk_in_bf16_keeps_the_dtype_of_v_and_a_float32_state(min_decay):
    call = make_call(2, 67, 3, 20, 12, dtype=torch.bfloat16, lowest=min_decay or -9.0)
    out, last = kda_chunk(*call[:5], state=call[5], chunk=CHUNK, min_decay=min_decay)
    assert (out.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    want, state = exact(call)
    plain, _ = kda_reference(*call[:5], state=call[5], compute_dtype=torch.bfloat16)
    assert_no_worse(out, plain=plain, exact=want)
    assert_close(last, state, 1e-5)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_all_forms_agree_in_float64_for_any_sizes(data):
    B, T, H, K, V = (
        data.draw(st.integers(1, top), label=name)
        for name, top in zip("BTHKV", (3, 70, 3, 9, 9), strict=True)
    )
    chunk = data.draw(st.sampled_from([16, 32, 48]), label="chunk")
    min_decay = data.draw(st.sampled_from([None, -5.0, -2.0]), label="min_decay")
    torch.manual_seed(data.draw(st.integers(0, 99), label="seed"))
    call = make_call(B, T, H, K, V, lowest=min_decay or -30.0)
    want = gradients(kda_reference, call, compute_dtype=torch.float64)
    chunked = gradients(kda_chunk, call, chunk=chunk, min_decay=min_decay)
    looped = gradients(kda_recurrent, call)
    for name, a, b, c in zip(RESULTS, chunked, looped, want, strict=True):
        assert_close(a, c, 1e-10, f"chunk: {name}")
        assert_close(b, c, 1e-10, f"recurrent: {name}")


def test_any_split_into_calls_gives_the_same_numbers():
    call = make_call(2, 37, 2, 7, 5)
    want, state = exact(call)
    for cuts in ([16], [1, 2, 20], [36], list(range(1, 37))):
        S, outs = call[5], []
        for a, b in zip([0, *cuts], [*cuts, 37], strict=True):
            part = [x[:, a:b] for x in call[:5]]
            run = kda_step if b - a == 1 else kda
            out, S = run(*part, state=S)
            outs.append(out)
        assert_close(torch.cat(outs, 1), want, 1e-10, f"{cuts}")
        assert_close(S, state, 1e-10, f"{cuts}")


def test_reference_names_its_stages():
    call = make_call(1, 4, 2, 5, 3)
    q, k, v, g, beta, state = call
    stages = kda_reference_stages(q, k, v, g, beta, state=state, compute_dtype=torch.float64)
    out, last = exact(call)
    assert torch.equal(stages.out, out)
    assert torch.equal(stages.written[:, -1], last)
    assert_close(stages.decayed[:, 0], g[:, 0].exp()[..., None] * state, 1e-12)
    missing = v[:, 0] - torch.einsum("bhkv,bhk->bhv", stages.decayed[:, 0], k[:, 0])
    assert_close(stages.missing[:, 0], missing, 1e-12)


def test_no_tokens_pass_the_state_through():
    call = make_call(2, 0, 3, 5, 4)
    for run in (kda_reference, kda_recurrent, kda_chunk, kda):
        options = {"compute_dtype": torch.float64} if run is kda_reference else {}
        out, last = run(*call[:5], state=call[5], **options)
        assert out.shape == (2, 0, 3, 4)
        assert torch.equal(last, call[5])


def test_kda_takes_the_loop_for_few_tokens_and_the_chunks_for_a_gradient():
    call = make_call(2, 5, 2, 6, 4)  # float64: no native way
    assert torch.equal(kda(*call[:5])[0], kda_recurrent(*call[:5])[0])
    call[0].requires_grad_()
    assert "Chunked" in type(kda(*call[:5])[0].grad_fn).__name__
    assert kda(*call[:5], return_state=False)[1] is None


def test_kda_takes_the_way_that_is_named():
    call = make_call(2, 5, 2, 6, 4, dtype=torch.float32)
    named, _ = kda(*call[:5], state=call[5], backend="kda.chunk")
    assert torch.equal(named, kda_chunk(*call[:5], state=call[5])[0])
    assert not torch.equal(named, kda(*call[:5], state=call[5])[0])
    call[0].requires_grad_()
    looped = kda(*call[:5], chunk=16, return_state=False, backend="kda.recurrent")
    assert looped[1] is None
    assert torch.equal(looped[0], kda_recurrent(*call[:5])[0])


# ---- causality, padding, memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("min_decay", [None, -5.0, -1.0], ids=lambda d: f"least{d}")
def test_a_later_token_changes_no_earlier_bit(dtype, min_decay):
    call = make_call(2, 67, 3, 20, 12, dtype=dtype, lowest=min_decay or -9.0)
    out, _ = kda_chunk(*call[:5], chunk=CHUNK, min_decay=min_decay)
    other = make_call(2, 67, 3, 20, 12, dtype=dtype, lowest=min_decay or -9.0)
    for t in (1, 5, 15, 16, 31, 40, 66):
        changed = [torch.cat((x[:, :t], y[:, t:]), 1) for x, y in zip(call, other, strict=True)][:5]
        again, _ = kda_chunk(*changed, chunk=CHUNK, min_decay=min_decay)
        assert torch.equal(again[:, :t], out[:, :t]), t
        assert not torch.equal(again[:, t:], out[:, t:]), t


@pytest.mark.parametrize("run", [kda_recurrent, kda_chunk, kda])
def test_padding_changes_nothing_and_reads_zero(run):
    call = make_call(3, 21, 2, 7, 5)
    lengths = torch.tensor([21, 4, 0])
    for b, real in enumerate([21, 4, 0]):
        for x in call[:5]:
            x[b, real:] = float("nan")  # what lies in the padding must not matter
    out, last = run(*call[:5], state=call[5], lengths=lengths)
    for b, real in enumerate([21, 4, 0]):
        alone = [x[b : b + 1, :real] for x in call[:5]] + [call[5][b : b + 1]]
        want, state = exact(alone)
        assert_close(out[b : b + 1, :real], want, 1e-10)
        assert_close(last[b : b + 1], state, 1e-10)
        assert not out[b, real:].any()


def test_padding_gets_no_gradient():
    call = make_call(2, 21, 2, 7, 5)
    got = gradients(kda_chunk, call, lengths=torch.tensor([21, 4]))
    alone = [x[1:, :4] for x in call[:5]] + [call[5][1:]]
    leaves = [x.clone().requires_grad_() for x in alone]
    out, last = kda_reference(*leaves[:5], state=leaves[5], compute_dtype=torch.float64)
    whole = torch.linspace(-1, 1, got[0].numel(), dtype=torch.float64).cos().view(got[0].shape)
    ends = torch.linspace(-1, 1, got[1].numel(), dtype=torch.float64).cos().view(got[1].shape)
    want = torch.autograd.grad((out * whole[1:, :4]).sum() + (last * ends[1:]).sum(), leaves)
    for name, a, b in zip(NAMES[:5], got[2:], want, strict=False):
        assert_close(a[1:, :4], b, 1e-10, name)
        assert not a[1, 4:].any(), name


def test_the_backward_keeps_the_inputs_and_one_state_per_chunk():
    call = [x.requires_grad_() for x in make_call(1, 100, 2, 6, 5)]
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: sizes.append(x.numel()) or x, lambda x: x
    ):
        kda_chunk(*call[:5], state=call[5], chunk=CHUNK)
    assert sum(sizes) == sum(x.numel() for x in call[:5]) + 4 * call[5].numel()


def test_a_chunk_that_does_not_fit_is_refused():
    call = make_call(1, 4, 1, 3, 2)
    with pytest.raises(ShapeError, match="multiple of 16; got 24"):
        kda_chunk(*call[:5], chunk=24)


def test_gradcheck_of_the_chunk_form():
    q, k, v, g, beta, state = make_call(1, 17, 1, 2, 1)
    leaves = [x.requires_grad_() for x in (q, F.normalize(k, dim=-1), v, g, beta, state)]
    for min_decay in (None, -5.0):
        assert torch.autograd.gradcheck(
            lambda *x, least=min_decay: kda_chunk(*x[:5], state=x[5], chunk=16, min_decay=least),
            leaves,
            fast_mode=True,
        )

"""Reported faults of other libraries, as tests of whole models; the id is in each name."""

import sys

import pytest
import torch
from small_hybrids import K3_STYLE, STYLES, lively, model, small, tokens

import interlace
from closeness import assert_close, error
from interlace.caches import DeltaState
from interlace.config import HybridConfig
from interlace.models import HybridLM, init_weights
from interlace.ops.delta_rule import kda_reference
from interlace.ops.norm import l2norm

TWO = {"num_hidden_layers": 2, "kda_layers": (1,), "full_attn_layers": (2,)}


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [({}, (1, 2, 31, 32, 33, 37, 63, 64, 65, 66, 129, 130)), (TWO, range(1, 131))],
    ids=["four layers", "two layers at every length"],
)
def test_b06_full_pass_equals_prefill_and_one_step(changes, lengths):
    lm = model(**changes)
    for length in lengths:
        ids = tokens(1, length)
        cache = lm.new_cache(1)
        if length > 1:  # there is no prefill of nothing
            lm(ids[:, :-1], cache=cache, last_only=True)
        full = lm(ids, last_only=True)
        assert_close(lm(ids[:, -1:], cache=cache), full, 1e-5, f"T={length}")


def test_b07_many_tokens_on_a_filled_cache_continue_the_state():
    lm = model()
    ids = tokens(1, 47)
    cache, once = lm.new_cache(1), lm.new_cache(1)
    lm(ids[:, :40], cache=cache)
    steps = cache.clone()
    rest = lm(ids[:, 40:], cache=cache)
    for t in range(40, 47):
        assert_close(rest[:, t - 40], lm(ids[:, t : t + 1], cache=steps)[:, 0], 1e-5, f"token {t}")
    whole = lm(ids, cache=once)
    assert_close(rest, whole[:, 40:], 1e-5)
    for other in (cache, steps):
        assert_equal_caches(other, once, 1e-5)


def assert_equal_caches(found, wanted, tolerance):
    """Every state, window and latent; at least one state is there."""
    states = 0
    for layer, other in zip(found.layers, wanted.layers, strict=True):
        parts = ("state", "conv_q", "conv_k", "conv_v") if isinstance(layer, DeltaState) else ()
        for part in parts:
            assert_close(getattr(layer, part), getattr(other, part), tolerance, part)
        if not parts:
            assert_close(layer.view(), other.view(), tolerance, "latents")
        states += bool(parts)
    assert states


def test_b09_one_token_rows_beside_a_long_prefill():
    """Rows that decode and a row that reads its prompt, in one call on caches already filled."""
    lm = model()
    first, second = tokens(3, 9), tokens(3, 64)
    lengths = [1, 64, 1]
    cache = lm.new_cache(3)
    lm(first, lengths=[9, 0, 4], cache=cache, last_only=True)
    last = lm(second, lengths=lengths, cache=cache, last_only=True)
    assert torch.isfinite(last).all()
    for row, (before, now) in enumerate(zip([9, 0, 4], lengths, strict=True)):
        ids = torch.cat([first[row, :before], second[row, :now]])[None]
        alone = lm.new_cache(1)
        assert_close(last[row], lm(ids, cache=alone, last_only=True)[0], 1e-5, f"row {row}")
        for layer, other in zip(cache.layers, alone.layers, strict=True):
            if isinstance(layer, DeltaState):
                assert_close(layer.state[row], other.state[0], 1e-5, f"state of row {row}")


@STYLES
def test_b14_packed_documents_are_those_of_the_document_alone(style):
    lm = model(style, "float64")
    documents = [5, 1, 2, 64, 3]
    ids = tokens(1, sum(documents))
    offsets = torch.tensor([0, *documents]).cumsum(0)
    packed = lm(ids, cu_seqlens=offsets)
    for part, one in zip(packed.split(documents, 1), ids.split(documents, 1), strict=True):
        assert_close(part, lm(one), 1e-10)
    assert error(packed, lm(ids)) > 1e-3


@STYLES
def test_b14_packed_gradients_are_those_of_the_documents_alone(style):
    lm = model(style, "float64").requires_grad_(True)
    documents = [5, 1, 2, 64, 3]
    ids = tokens(1, sum(documents))
    weight = torch.randn(1, sum(documents), 61, dtype=torch.float64)
    parameters = dict(lm.named_parameters())

    def gradients(loss):
        return torch.autograd.grad(loss, list(parameters.values()))

    offsets = torch.tensor([0, *documents]).cumsum(0)
    got = gradients((lm(ids, cu_seqlens=offsets) * weight).sum())
    pairs = zip(ids.split(documents, 1), weight.split(documents, 1), strict=True)
    want = gradients(sum((lm(one) * part).sum() for one, part in pairs))
    for name, a, b in zip(parameters, got, want, strict=True):
        assert_close(a, b, 1e-10, name)


@pytest.mark.parametrize("name", ["kda.short_conv", "kda.kda", "mla.attention_expanded"])
def test_b14_each_reset_alone_shows(monkeypatch, name):
    """Without the boundaries in one operator the comparison above is red."""
    lm = model(dtype="float64")
    documents = [5, 1, 2, 64, 3]
    ids = tokens(1, sum(documents))
    offsets = torch.tensor([0, *documents]).cumsum(0)
    alone = torch.cat([lm(one) for one in ids.split(documents, 1)], 1)
    module, _, operator = name.partition(".")
    module = sys.modules[f"interlace.layers.{module}"]
    run = getattr(module, operator)
    monkeypatch.setattr(module, operator, lambda *a, **o: run(*a, **{**o, "cu_seqlens": None}))
    assert error(lm(ids, cu_seqlens=offsets), alone) > 1e-3


@pytest.mark.parametrize(
    ("style", "late"), [({}, False), (K3_STYLE, True)], ids=["start together", "end together"]
)
def test_b18_a_row_does_not_depend_on_how_long_its_neighbours_are(style, late):
    """Prompts of 3, 9 and 40 tokens in chunks of 16, then 20 greedy steps: as each row alone.

    Padding is on the right; rows that end together begin in a later chunk, after chunks in which
    they have no token.
    """
    lm, lengths, chunk = model(style), [3, 9, 40], 16
    prompts = [tokens(1, 50 + n)[0, :n] for n in lengths]

    def greedy(cache, logits):
        chosen, seen = [], []
        for _ in range(20):
            seen.append(logits[:, 0])
            chosen.append(logits.argmax(-1))
            logits = lm(chosen[-1], cache=cache, last_only=True)
        return torch.cat(chosen, 1), torch.stack(seen, 1)

    together, last = lm.new_cache(3), torch.zeros(3, 1, 61)
    starts = [(40 - n) // chunk * chunk if late else 0 for n in lengths]
    for begin in range(0, 48, chunk):
        ids, real = torch.full((3, chunk), 7), []
        for row, prompt in enumerate(prompts):
            part = prompt[max(0, begin - starts[row]) : max(0, begin - starts[row] + chunk)]
            ids[row, : len(part)] = part
            real.append(len(part))
        logits = lm(ids, lengths=real, cache=together, last_only=True)
        for row, count in enumerate(real):
            if count:
                last[row] = logits[row]
    assert together.lengths.tolist() == lengths
    got, got_logits = greedy(together, last)
    for row, prompt in enumerate(prompts):
        alone = lm.new_cache(1)
        want, want_logits = greedy(alone, lm(prompt[None], cache=alone, last_only=True))
        assert torch.equal(got[row], want[0]), f"row of {lengths[row]}"
        # two ways that each round over up to 59 tokens; a wrong neighbour is worse than 1e-3
        assert_close(got_logits[row], want_logits[0], 1e-4, f"row of {lengths[row]}")
        for layer, other in zip(together.layers, alone.layers, strict=True):
            if isinstance(layer, DeltaState):
                assert_close(layer.state[row], other.state[0], 1e-5, f"row of {lengths[row]}")


@pytest.mark.parametrize(
    "layout",
    [
        HybridConfig.layout(6, 5, False),  # 5 and 1
        ((1, 2, 4, 5), (3, 6, 7)),
        ((1,), ()),
        ((), (1, 2, 3, 4)),
        ((3,), (1, 2)),  # a global layer first, KDA last
        HybridConfig.layout(7, None, False),
        HybridConfig.layout(9, 3, True),
        HybridConfig.layout(2, 1, True),
    ],
    ids=str,
)
def test_b65_any_layout_runs(layout):
    kda, full = layout
    count = len(kda) + len(full)
    lm = model(num_hidden_layers=count, kda_layers=kda, full_attn_layers=full, dtype="float64")
    ids = tokens(1, 9)
    cache = lm.new_cache(1)
    parts = [lm(ids[:, :8], cache=cache), lm(ids[:, 8:], cache=cache)]
    assert_close(torch.cat(parts, 1), lm(ids), 1e-10)
    assert sum(isinstance(layer, DeltaState) for layer in cache.layers) == len(kda)


@pytest.mark.parametrize("shared", [0, 6])
def test_b27_no_shared_key(shared):
    lm = model(qk_rope_head_dim=shared, dtype="float64")
    ids = tokens(1, 9)
    cache = lm.new_cache(1)
    parts = [lm(ids[:, :4], cache=cache), lm(ids[:, 4:], cache=cache)]
    assert_close(torch.cat(parts, 1), lm(ids), 1e-10)
    assert cache.layers[3].view().shape[-1] == 22 + shared


@pytest.mark.parametrize("rank", [None, 24])
def test_b28_query_path_follows_q_lora_rank(rank):
    names = {name for name, _ in interlace.build(small(q_lora_rank=rank)).named_parameters()}
    prefix = "model.layers.3.self_attn."
    low_rank = {
        prefix + "q_a_proj.weight",
        prefix + "q_a_layernorm.weight",
        prefix + "q_b_proj.weight",
    }
    assert low_rank <= names if rank else prefix + "q_proj.weight" in names and not low_rank & names


def test_b29_widths_come_from_the_right_fields():
    config = small(
        num_attention_heads=3,
        qk_nope_head_dim=5,
        qk_rope_head_dim=2,
        v_head_dim=7,
        kv_lora_rank=11,
        q_lora_rank=13,
    )
    attention = interlace.build(config).model.layers[3].self_attn
    assert attention.kv_a_proj_with_mqa.weight.shape == (13, 40)
    assert attention.kv_b_proj.weight.shape == (3 * (5 + 7), 11)
    assert attention.q_b_proj.weight.shape == (3 * (5 + 2), 13)
    lm = lively(interlace.build(config, dtype="float64")).requires_grad_(False)
    ids, cache = tokens(1, 9), lm.new_cache(1)
    parts = [lm(ids[:, :7], cache=cache), lm(ids[:, 7:8], cache=cache), lm(ids[:, 8:], cache=cache)]
    assert_close(torch.cat(parts, 1), lm(ids), 1e-10)


def test_b32_zero_gate_halves_the_attention_output():
    gated = model(K3_STYLE, "float64").model.layers[3].self_attn
    x = torch.randn(1, 7, 40, dtype=torch.float64)
    gated.g_proj.weight.zero_()
    with_gate = gated(x)
    gated.use_output_gate = False
    assert_close(with_gate, gated(x) / 2, 1e-12)


def test_b68_kda_heads_follow_their_own_fields():
    config = small(num_attention_heads=8, qk_nope_head_dim=24, kda_num_heads=4, kda_head_dim=32)
    layer = interlace.build(config).model.layers[0].self_attn
    assert layer.q_proj.weight.shape == (4 * 32, 40)
    assert layer.A_log.shape == (4,)
    assert layer.b_proj.weight.shape == (4, 40)


def test_b99_meta_and_dtype_keep_the_initial_values():
    first, second = (interlace.build(small(), seed=5).state_dict() for _ in range(2))
    narrowed = interlace.build(small(), seed=5, dtype="bfloat16")
    for name, value in first.items():
        assert torch.equal(value, second[name])
        if name.endswith(("A_log", "dt_bias")):
            assert narrowed.state_dict()[name].dtype == torch.float32
            assert torch.equal(narrowed.state_dict()[name], value)
    late = interlace.build(small(), seed=5).bfloat16()
    kept = late.model.layers[0].self_attn
    assert torch.equal(kept.A_log, first["model.layers.0.self_attn.A_log"])
    assert torch.equal(kept.dt_bias, first["model.layers.0.self_attn.dt_bias"])
    assert (kept.A_log.dtype, kept.dt_bias.dtype) == (torch.float32, torch.float32)
    assert kept.q_proj.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_b99_a_model_made_elsewhere_and_filled_later_has_the_values_of_build(device):
    wanted = interlace.build(small(), seed=5).state_dict()
    with torch.device(device):
        late = HybridLM(small())
    late = late.to_empty(device="cpu")  # NaN in the tests: what is left out shows
    init_weights(late, 5)
    assert late.state_dict().keys() == wanted.keys()
    for name, value in late.state_dict().items():
        assert torch.equal(value, wanted[name]), name


def test_b26_state_is_float32_in_a_bfloat16_model():
    lm = model(dtype="bfloat16")
    cache = lm.new_cache(1)
    lm(tokens(1, 6), cache=cache)
    assert cache.layers[0].state.dtype == torch.float32
    assert cache.layers[3].view().dtype == torch.bfloat16


def test_b26_no_step_of_a_bfloat16_model_rounds_the_state(monkeypatch):
    """160 steps with little decay against float64 on the same inputs of the recurrence."""
    lm = model().bfloat16()
    layer = lm.model.layers[0].self_attn
    layer.A_log.fill_(0.0)
    layer.dt_bias.fill_(-7.0)  # alpha about 0.999
    module, seen = sys.modules["interlace.layers.kda"], []
    run = module.kda

    def record(q, k, *given, unit_eps, **options):
        given = (l2norm(q, unit_eps), l2norm(k, unit_eps), *given)
        seen.append(given)
        return run(*given, **options)

    monkeypatch.setattr(module, "kda", record)
    cache = lm.new_cache(1).layers[0]
    x = torch.randn(1, 200, 40).bfloat16()
    for part in x.split([40, *[1] * 160], 1):
        layer(part, cache=cache)
    whole = [torch.cat(parts, 1).double() for parts in zip(*seen, strict=True)]
    _, exact = kda_reference(*whole, compute_dtype=torch.float64)
    assert float((cache.state - exact).norm() / exact.norm()) < 1e-5
    assert not torch.equal(cache.state.bfloat16().float(), cache.state)


def test_b35_nan_in_reserved_memory_is_never_read():
    lm = model()
    ids, lengths = tokens(2, 10), [3, 10]
    poisoned, zeroed = lm.new_cache(2, capacity=64), lm.new_cache(2, capacity=64)
    for cache, value in ((poisoned, float("nan")), (zeroed, 0.0)):
        for layer in cache.layers:
            if not hasattr(layer, "state"):
                layer._buffer.fill_(value)
    for step in (ids, tokens(2, 1)):
        rows = lengths if step is ids else None
        a = lm(step, cache=poisoned, lengths=rows, last_only=True)
        b = lm(step, cache=zeroed, lengths=rows, last_only=True)
        assert torch.isfinite(a).all()
        assert torch.equal(a, b)

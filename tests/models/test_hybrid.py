"""Any split into calls, any padding and any packing gives what one call on one sequence gives."""

import subprocess
import sys

import pytest
import torch

import interlace
from closeness import assert_close, error
from interlace.config import HybridConfig, preset
from interlace.errors import CacheError, ConfigError, InputError, ShapeError


def small(**changes) -> HybridConfig:
    """Kimi Linear in small: every size different, biases that matter come from `lively`."""
    kda, full = HybridConfig.layout(4)
    fields = {
        "vocab_size": 61,
        "hidden_size": 40,
        "num_hidden_layers": 4,
        "kda_layers": kda,
        "full_attn_layers": full,
        "num_attention_heads": 3,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 6,
        "v_head_dim": 14,
        "kv_lora_rank": 22,
        "kda_num_heads": 2,
        "kda_head_dim": 12,
        "intermediate_size": 52,
        "max_position_embeddings": 4096,
    }
    return HybridConfig(**{**fields, **changes})


def lively(lm: torch.nn.Module, seed: int = 1) -> torch.nn.Module:
    """Weights large enough, norms and biases far enough from their start, for every term to
    show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if name.endswith(("layernorm.weight", "norm.weight")):
                parameter.copy_(1 + 0.3 * noise)
            elif parameter.ndim == 2:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            elif name.endswith("dt_bias"):
                parameter.copy_(-2 + noise)
    return lm


K3_STYLE = {
    "gate_lower_bound": -5.0,
    "use_full_rank_gate": True,
    "mla_use_output_gate": True,
    "q_lora_rank": 18,
    "model_type": "kimi_k3",
}
STYLES = pytest.mark.parametrize("style", [{}, K3_STYLE], ids=["kimi_linear", "k3_mixers"])


def model(style=None, dtype="float32", **changes):
    return lively(
        interlace.build(small(**(style or {}), **changes), seed=3, dtype=dtype)
    ).requires_grad_(False)


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 61, (batch, length), generator=torch.Generator().manual_seed(length))


@STYLES
def test_any_split_gives_the_same_logits(style):
    lm = model(style, "float64")
    ids = tokens(2, 75)
    whole = lm(ids)
    for cuts in ([75], [1, 74], [33, 1, 1, 40], [64, 11], [70, 1, 1, 1, 1, 1]):
        cache = lm.new_cache(2)
        parts = [lm(part, cache=cache) for part in ids.split(cuts, 1)]
        assert_close(torch.cat(parts, 1), whole, 1e-10, f"split {cuts}")
        assert cache.lengths.tolist() == [75, 75]


def test_b06_full_pass_equals_prefill_and_one_step():
    lm = model()
    for length in (2, 3, 31, 32, 33, 63, 64, 65, 66, 129, 130):
        ids = tokens(1, length)
        cache = lm.new_cache(1)
        lm(ids[:, :-1], cache=cache)
        assert_close(lm(ids[:, -1:], cache=cache), lm(ids)[:, -1:], 1e-5, f"T={length}")


def test_b07_many_tokens_on_a_filled_cache_continue_the_state():
    lm = model()
    ids = tokens(1, 47)
    cache, once = lm.new_cache(1), lm.new_cache(1)
    lm(ids[:, :40], cache=cache)
    lm(ids[:, 40:], cache=cache)
    lm(ids, cache=once)
    for layer, other in zip(cache.layers, once.layers, strict=True):
        if hasattr(layer, "state"):
            assert_close(layer.state, other.state, 1e-5)


@STYLES
def test_right_padded_rows_are_those_of_the_row_alone(style):
    lm = model(style, "float64")
    lengths = [3, 40, 9]
    ids = tokens(3, 40)
    cache = lm.new_cache(3)
    last = lm(ids, lengths=lengths, cache=cache, last_only=True)
    following = tokens(3, 5)
    then = lm(following, cache=cache)
    for row, length in enumerate(lengths):
        alone = lm.new_cache(1)
        one = ids[row : row + 1, :length]
        assert_close(last[row : row + 1], lm(one, cache=alone, last_only=True), 1e-10)
        assert_close(then[row : row + 1], lm(following[row : row + 1], cache=alone), 1e-10)
    assert cache.lengths.tolist() == [8, 45, 14]


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


def test_rows_laid_end_to_end_pack_like_one_row():
    lm = model(dtype="float64")
    ids = tokens(2, 30)
    assert_close(
        lm(ids, cu_seqlens=[0, 12, 30, 60]),
        lm(ids.view(1, 60), cu_seqlens=[0, 12, 30, 60]).view(2, 30, -1),
        1e-10,
    )


def test_b18_a_row_does_not_depend_on_its_neighbours():
    lm = model()
    one = tokens(1, 33)
    assert_close(lm(one.repeat(8, 1)), lm(one).repeat(8, 1, 1), 1e-6)


@STYLES
def test_causality(style):
    lm = model(style)
    ids = tokens(1, 40)
    changed = ids.clone()
    changed[0, 30] = (ids[0, 30] + 1) % 61
    assert_close(lm(changed)[:, :30], lm(ids)[:, :30], 1e-6)
    assert error(lm(changed)[:, 30:], lm(ids)[:, 30:]) > 1e-3


@pytest.mark.parametrize(
    "layout",
    [(6, 5, False), (7, None, False), (4, 0, True), (1, None, False), (9, 3, True), (2, 1, True)],
    ids=str,
)
def test_b65_any_layout_runs(layout):
    count, ratio, final = layout
    kda, full = HybridConfig.layout(count, ratio, final)
    lm = model(num_hidden_layers=count, kda_layers=kda, full_attn_layers=full, dtype="float64")
    ids = tokens(1, 9)
    cache = lm.new_cache(1)
    parts = [lm(ids[:, :8], cache=cache), lm(ids[:, 8:], cache=cache)]
    assert_close(torch.cat(parts, 1), lm(ids), 1e-10)


def test_b65_global_layers_first_and_kda_last():
    lm = model(num_hidden_layers=3, kda_layers=(3,), full_attn_layers=(1, 2), dtype="float64")
    ids = tokens(1, 9)
    cache = lm.new_cache(1)
    parts = [lm(ids[:, :4], cache=cache), lm(ids[:, 4:], cache=cache)]
    assert_close(torch.cat(parts, 1), lm(ids), 1e-10)


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
    assert kept.q_proj.weight.dtype == torch.bfloat16


def test_b26_state_is_float32_in_a_bfloat16_model():
    lm = model(dtype="bfloat16")
    cache = lm.new_cache(1)
    lm(tokens(1, 6), cache=cache)
    assert cache.layers[0].state.dtype == torch.float32
    assert cache.layers[3].view().dtype == torch.bfloat16


def test_latent_cache_holds_the_latent_after_its_norm():
    lm = model(dtype="float64")
    layer = lm.model.layers[3].self_attn
    x = torch.randn(1, 7, 40, dtype=torch.float64)
    cache = lm.new_cache(1)
    layer(x, cache=cache.layers[3])
    raw = x @ layer.kv_a_proj_with_mqa.weight.T
    latent = raw[..., :22] * torch.rsqrt(raw[..., :22].square().mean(-1, keepdim=True) + 1e-6)
    expected = torch.cat([latent * layer.kv_a_layernorm.weight, raw[..., 22:]], -1)
    assert_close(cache.layers[3].view(), expected, 1e-12)


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


def test_gradients_reach_every_parameter():
    lm = lively(interlace.build(small(**K3_STYLE)))
    lm(tokens(2, 40), cu_seqlens=[0, 13, 40, 80]).square().mean().backward()
    for name, parameter in lm.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda lm: lm(torch.tensor([[61]])), InputError, "0..60, got 61"),
        (lambda lm: lm(torch.tensor([[-1]])), InputError, "got -1"),
        (lambda lm: lm(torch.empty(1, 0, dtype=torch.int64)), InputError, "at least one token"),
        (lambda lm: lm(tokens(2, 3), lengths=[1]), ShapeError, "lengths must be"),
        (lambda lm: lm(tokens(1, 3), lengths=[4]), InputError, "0..T = 3, got 4"),
        (lambda lm: lm(tokens(1, 3), cu_seqlens=[0, 2]), ShapeError, "from 0 to B"),
        (lambda lm: lm(tokens(1, 3), cu_seqlens=[1, 3]), ShapeError, "from 0 to B"),
        (lambda lm: lm(tokens(1, 3), cu_seqlens=[0, 2, 1, 3]), ShapeError, "never fall"),
        (lambda lm: lm(tokens(2, 3), cu_seqlens=[0, 2, 6]), ShapeError, "lacks the offset 3"),
        (
            lambda lm: lm(tokens(1, 3), cu_seqlens=[0, 3], cache=lm.new_cache(1)),
            InputError,
            "not both",
        ),
        (lambda lm: lm(tokens(2, 3), cache=lm.new_cache(1)), CacheError, "for 2 rows"),
    ],
    ids=range(11),
)
def test_bad_calls_are_refused_with_one_sentence(call, kind, words):
    with pytest.raises(kind, match=words):
        call(model())


def test_what_cannot_be_built_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"quantised weights \(mxfp4-pack-quantized\)"):
        interlace.build(preset("kimi-k3"))


def test_only_integers_count_tokens():
    # in a process of its own, where no checker of annotations comes first
    code = """
import torch, interlace
from interlace.errors import InputError
lm = interlace.build("kimi-linear-tiny")
ids = torch.tensor([[1, 2]])
calls = [
    (ids.float(), {}), (ids.bool(), {}), ([[1, 2]], {}), (ids.to("meta"), {}),
    (ids, {"lengths": [1.5]}), (ids, {"lengths": torch.tensor([True])}), (ids, {"lengths": "a"}),
    (ids, {"cu_seqlens": [0, 1.5, 2]}), (ids, {"cu_seqlens": torch.tensor([0, 2]).to("meta")}),
]
for tokens, options in calls:
    try:
        lm(tokens, **options)
    except InputError as error:
        assert "integers" in str(error), error
    else:
        raise AssertionError((tokens, options))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_lora_rank": 21, "qk_rope_head_dim": 7},  # the same latent width
        {"kda_num_heads": 4, "kda_head_dim": 6},  # the same number of channels
        {"kda_layers": (1, 2, 4), "full_attn_layers": (3,)},
        {"short_conv_kernel_size": 3},
    ],
)
def test_cache_of_another_model_is_refused(changes):
    other = interlace.build(small(**changes)).new_cache()
    with pytest.raises(CacheError, match="of this model"):
        interlace.build(small())(torch.tensor([[1, 2]]), cache=other)


def test_cache_of_integers_is_refused():
    lm = interlace.build(small())
    with pytest.raises(CacheError, match="floating"):
        lm.new_cache(dtype=torch.int64)


def test_cache_of_a_failed_call_is_refused_and_its_clone_goes_on():
    lm = interlace.build(small())
    tokens = torch.tensor([[1, 2, 3]])
    cache = lm.new_cache()
    lm(tokens, cache=cache)
    before = cache.clone()

    def fail(*_):
        raise KeyboardInterrupt

    handle = lm.model.layers[2].register_forward_pre_hook(fail)
    with pytest.raises(KeyboardInterrupt):
        lm(tokens, cache=cache)
    handle.remove()
    with pytest.raises(CacheError, match="failed half-way"):
        lm(tokens, cache=cache)
    lm(tokens, cache=before)


def test_build_refuses_what_weights_cannot_be():
    for options in ({"dtype": torch.int8}, {"dtype": torch.float8_e4m3fn}, {"seed": -1}):
        with pytest.raises(InputError):
            interlace.build(small(), **options)

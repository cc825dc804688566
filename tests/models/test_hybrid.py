"""Any split into calls, any padding and any packing gives what one call on one sequence gives."""

import subprocess
import sys

import pytest
import torch
from small_hybrids import K3_STYLE, STYLES, lively, model, small, tokens

import interlace
from closeness import assert_close, error
from interlace.config import preset
from interlace.errors import CacheError, ConfigError, InputError, ShapeError


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


def test_rows_laid_end_to_end_pack_like_one_row():
    lm = model(dtype="float64")
    ids = tokens(2, 30)
    assert_close(
        lm(ids, cu_seqlens=[0, 12, 30, 60]),
        lm(ids.view(1, 60), cu_seqlens=[0, 12, 30, 60]).view(2, 30, -1),
        1e-10,
    )


@STYLES
def test_causality(style):
    lm = model(style)
    ids = tokens(1, 40)
    changed = ids.clone()
    changed[0, 30] = (ids[0, 30] + 1) % 61
    assert_close(lm(changed)[:, :30], lm(ids)[:, :30], 1e-6)
    assert error(lm(changed)[:, 30:], lm(ids)[:, 30:]) > 1e-3


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
        (lambda lm: lm(tokens(1, 3), cu_seqlens=[0, 3], lengths=[3]), InputError, "not both"),
        (lambda lm: lm(tokens(2, 3), cache=lm.new_cache(1)), CacheError, "for 2 rows"),
    ],
    ids=range(11),
)
def test_bad_calls_are_refused_with_one_sentence(call, kind, words):
    with pytest.raises(kind, match=words):
        call(model())


def test_what_cannot_be_built_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"quantised weights must be packed experts .* 'int8'"):
        interlace.build(preset("kimi-linear-tiny").replace(quantization={"format": "int8"}))


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

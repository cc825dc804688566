"""Predicted bytes against what the engine allocates, over random hybrids, to the byte."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import interlace
from interlace.config import HybridConfig
from interlace.planner import plan


@st.composite
def hybrids(draw):
    layers = draw(st.integers(1, 5))
    ratio = draw(st.sampled_from([0, 1, 2, 3, None]))
    final = draw(st.booleans()) if ratio is not None else False
    kda, full = HybridConfig.layout(layers, ratio, final)
    small = st.integers(1, 9)
    fields = {
        "vocab_size": draw(st.integers(5, 40)),
        "hidden_size": draw(st.integers(4, 24)),
        "num_hidden_layers": layers,
        "kda_layers": kda,
        "full_attn_layers": full,
        "intermediate_size": draw(st.integers(1, 30)),
        "tie_word_embeddings": draw(st.booleans()),
    }
    if full:
        fields |= {
            "num_attention_heads": draw(small),
            "qk_nope_head_dim": draw(small),
            "qk_rope_head_dim": draw(st.integers(0, 7)),
            "v_head_dim": draw(small),
            "kv_lora_rank": draw(small),
            "q_lora_rank": draw(st.none() | small),
            "mla_use_output_gate": draw(st.booleans()),
        }
    if kda:
        fields |= {
            "kda_num_heads": draw(small),
            "kda_head_dim": draw(small),
            "short_conv_kernel_size": draw(st.integers(2, 5)),
            "use_full_rank_gate": draw(st.booleans()),
            "gate_lower_bound": draw(st.sampled_from([None, -5.0])),
        }
    if draw(st.booleans()):
        experts = draw(st.integers(2, 6))
        fields |= {
            "num_experts": experts,
            "num_experts_per_token": draw(st.integers(1, experts)),
            "moe_intermediate_size": draw(small),
            "num_shared_experts": draw(st.integers(0, 2)),
            "first_k_dense_replace": draw(st.integers(0, layers - 1)),
        }
    return fields  # a config draws on chance where its types are checked, which a strategy may not


def allocated(tensors):
    storages = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


@settings(deadline=None, max_examples=25)
@given(
    fields=hybrids(),
    batch=st.integers(1, 3),
    capacity=st.integers(1, 70),
    dtype=st.sampled_from(["bf16", "fp32"]),
    cache=st.sampled_from([None, "float16", "float32"]),
)
def test_bytes_are_those_that_the_engine_allocates(fields, batch, capacity, dtype, cache):
    config = HybridConfig(**fields)
    p = plan(config, context=capacity, batch=batch, weights=dtype, cache_dtype=cache)
    assert p.not_run_here == ()
    full = {"bf16": "bfloat16", "fp32": "float32"}[dtype]
    lm = interlace.build(config, seed=0, dtype=full)
    assert allocated([*lm.parameters(), *lm.buffers()]) == p.nbytes("weights")
    made = new_cache(lm, batch, capacity, getattr(torch, cache or full))
    assert made.latent_bytes == p.nbytes("cache")
    assert made.state_bytes == p.nbytes("state")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_packed_experts_take_what_the_plan_says(dtype):
    from packed_models import packed_config, plain_config

    lm = interlace.build(packed_config(dtype=dtype), seed=0, dtype=dtype)
    held = allocated([*lm.parameters(), *lm.buffers()])
    for config, weights in (
        (packed_config(dtype=dtype), "as-stored"),
        (plain_config(dtype=dtype), "mxfp4"),
    ):
        p = plan(config, context=9, weights=weights)
        assert p.nbytes("weights") == held
        assert p.not_run_here == ()
    expanded = plan(
        packed_config(dtype=dtype), context=9, weights={"bfloat16": "bf16"}.get(dtype, "fp32")
    )
    plain = interlace.build(plain_config(dtype=dtype), seed=0, dtype=dtype)
    assert expanded.nbytes("weights") == allocated([*plain.parameters(), *plain.buffers()])


def new_cache(lm, batch, capacity, dtype):
    from interlace.caches import HybridCache

    return HybridCache(lm.config, batch, dtype, "cpu", capacity)


def test_a_float64_model_keeps_its_state_in_float64():
    config = interlace.config.preset("kimi-linear-tiny").replace(dtype="float64")
    p = plan(config, context=9)
    cache = new_cache(interlace.build(config, dtype="float64"), 1, 9, torch.float64)
    assert (cache.latent_bytes, cache.state_bytes) == (p.nbytes("cache"), p.nbytes("state"))


@pytest.mark.parametrize("name", ["default", "kimi-linear-tiny"])
def test_a_checkpoint_folder_says_what_its_files_hold(name, tmp_path):
    if name == "default":
        p = plan("default", context="64K")
    else:
        interlace.save(interlace.build(name, seed=0), tmp_path)
        p = plan(tmp_path, context="64K")
    (note,) = [n for n in p.description.notes if "bytes of tensors" in n]
    assert f"{p.to_dict()['checkpoint_bytes']:,}" in note

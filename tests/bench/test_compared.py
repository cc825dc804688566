"""The comparison with llama.cpp: its models, its measures, and what it says of a failed process."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import interlace
from interlace.bench.peers import llama_logits
from interlace.bench.peers.compared import (
    CASES,
    TRIED,
    agreement,
    fill,
    pack_experts,
    per_token,
    their_epsilons,
)
from interlace.config import preset
from interlace.errors import InputError
from interlace.models import HybridLM


def test_seven_models_are_compared_and_no_two_sizes_of_one_are_equal():
    assert len(CASES) == 7
    for name in ("kimi-linear-tiny", "kimi-k3-tiny"):
        assert CASES[name] == preset(name)
    for name, config in (CASES | TRIED).items():
        if not name.startswith("kimi-"):
            sizes = [config.hidden_size, config.qk_nope_head_dim, config.v_head_dim]
            sizes += [config.qk_rope_head_dim, config.kv_lora_rank, config.kda_head_dim]
            sizes += [config.intermediate_size, config.vocab_size, config.num_attention_heads]
            sizes += [config.q_lora_rank or 1000, config.routed_expert_hidden_size or 1001]
            assert len(set(sizes)) == len(sizes), name
        with torch.device("meta"):
            HybridLM(config)


def test_the_measures():
    theirs = torch.tensor([[0.0, 4.0, 3.0], [1.0, 0.9, -8.0], [2.0, 0.0, 0.0]])
    ours = theirs + torch.tensor([[0.0, 0.0, 0.4], [0.0, 0.2, 0.0], [0.0, 2.4, 0.0]])
    found = agreement(ours, theirs, 0.02)  # 0.16 of a logit
    assert found.difference == pytest.approx(2.4 / 8)
    assert found.scale == 8
    assert (found.argmax, found.close) == (1, 1)
    assert agreement(ours / 16, theirs / 16, 0.02).difference == pytest.approx(2.4 / 16)
    assert per_token(ours, theirs) == pytest.approx(0.4)


def test_filled_weights_have_the_spread_of_their_width_and_no_norm_is_one():
    lm = interlace.build(preset("kimi-k3-tiny"))
    fill(lm)
    for name, value in lm.named_parameters():
        assert ((value != 0) & (value != 1)).all(), name
    weight = lm.model.layers[0].mlp.gate_proj.weight
    assert weight.std().item() == pytest.approx(weight.shape[1] ** -0.5, rel=0.05)


def test_three_epsilons_are_theirs_and_never_saved(tmp_path):
    lm = interlace.build(preset("kimi-k3-tiny"))
    fill(lm)
    ids = torch.arange(9)[None]
    with torch.inference_mode():
        before = lm(ids)
        their_epsilons(lm)
        after = lm(ids)
    assert 1e-6 < (after - before).abs().max() < 1e-2
    kda, mla = lm.model.layers[0].self_attn, lm.model.layers[4].self_attn
    assert kda.l2_norm_eps == mla.kv_a_layernorm.eps == mla.q_a_layernorm.eps == 1e-5
    interlace.save(lm, tmp_path / "model")
    with torch.inference_mode():
        loaded = interlace.load(tmp_path / "model")(ids)
    # mapped weights lie at other addresses, where a product may round otherwise in the last place
    assert (loaded - before).abs().max() < (after - before).abs().max() / 10


def test_experts_are_packed_and_only_their_codes_exchanged(tmp_path):
    lm = interlace.build(preset("kimi-k3-tiny"))
    fill(lm)
    interlace.save(lm, tmp_path / "model")
    for kind in ("right", "swapped"):
        (tmp_path / kind).mkdir()
        values = pack_experts(tmp_path / "model", tmp_path / kind, swapped=kind == "swapped")
    plain, right, swapped = (
        load_file(tmp_path / kind / "model.safetensors") for kind in ("model", "right", "swapped")
    )
    assert len(values) == 4 * 8 * 3
    assert right.keys() == swapped.keys()
    assert len(right) == len(plain) + len(values)
    for name, value in values.items():
        assert 0 < (value - plain[name]).norm() < 0.2 * plain[name].norm()
        codes, other = right[f"{name}_packed"], swapped[f"{name}_packed"]
        assert torch.equal(codes & 15, other >> 4)
        assert torch.equal(codes >> 4, other & 15)
        assert torch.equal(right[f"{name}_scale"], swapped[f"{name}_scale"])
    text = json.loads((tmp_path / "right" / "config.json").read_text())["text_config"]
    assert text["quantization_config"]["format"] == "mxfp4-pack-quantized"


def test_a_process_that_ends_says_why(tmp_path, monkeypatch):
    said = "loading\nerror: tensor 'a' has wrong  shape.\nllama_model_load_from_file: failed\n"
    assert llama_logits.last_words(said) == "error: tensor 'a' has wrong shape"
    assert llama_logits.last_words("") == "nothing"
    ended = "a/folder/x.cpp:205: GGML_ASSERT(buffer) failed\nmore\n"
    assert llama_logits.last_words(ended) == "x.cpp:205: GGML_ASSERT(buffer) failed"
    monkeypatch.setattr(llama_logits.sys, "executable", shutil.which("false"))
    with pytest.raises(InputError, match=r"llama\.cpp must run the model, it said: nothing"):
        llama_logits.llama_logits(tmp_path / "none.gguf", [1, 2], 1)

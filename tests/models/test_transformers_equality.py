"""float32 logits equal those of transformers, whoever wrote the checkpoint, however it is cut."""

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import interlace
from closeness import assert_close
from interlace.config import HybridConfig, preset

transformers = pytest.importorskip("transformers")
# the published config says rope_scaling: null, and so do we
pytestmark = pytest.mark.filterwarnings("ignore:.rope_scaling. is deprecated:FutureWarning")
TOLERANCE = 1e-4  # design notes, "Equality"


def small(**changes) -> HybridConfig:
    """Every size different, no power of two."""
    fields = {
        "vocab_size": 61,
        "hidden_size": 40,
        "num_hidden_layers": 4,
        "kda_layers": (1, 2, 4),
        "full_attn_layers": (3,),
        "num_attention_heads": 3,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 6,
        "v_head_dim": 14,
        "kv_lora_rank": 22,
        "kda_num_heads": 5,
        "kda_head_dim": 12,
        "intermediate_size": 52,
        "num_experts": 6,
        "num_experts_per_token": 3,
        "moe_intermediate_size": 18,
        "num_shared_experts": 2,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.446,
        "pad_token_id": 0,
        "dtype": "float32",
    }
    return HybridConfig(**{**fields, **changes})


CONFIGS = {
    "as in the spec": preset("kimi-linear-tiny"),
    "all sizes different": small(),
    "low-rank query": small(q_lora_rank=26, short_conv_kernel_size=3),
    "groups of experts": small(num_expert_group=3, topk_group=2, moe_renormalize=False),
    "dense": small(
        num_experts=None,
        num_experts_per_token=None,
        moe_intermediate_size=None,
        num_shared_experts=0,
        first_k_dense_replace=0,
        routed_scaling_factor=1.0,
    ),
    "global first": small(kda_layers=(2, 4), full_attn_layers=(1, 3), first_k_dense_replace=2),
}
ALL = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())


def lively(lm: nn.Module) -> nn.Module:
    """Every tensor far enough from its start for a mistake to show in the logits (spec 11.1)."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, value in [*lm.named_parameters(), *lm.named_buffers()]:
            noise = torch.randn(value.shape, generator=generator)
            if name.endswith("norm.weight"):
                value.copy_(1 + 0.3 * noise)
            elif name.endswith("dt_bias"):
                value.copy_(-2 + noise)
            elif name.endswith(("A_log", "conv1d.weight")):
                value.copy_(0.5 * noise)
            elif name.endswith("e_score_correction_bias"):
                value.copy_(0.3 * noise)
            else:
                value.copy_(noise * value.shape[-1] ** -0.5)
    return lm.requires_grad_(False).eval()


def ids(config: HybridConfig, length: int = 75) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(1, config.vocab_size, (2, length), generator=generator)


def theirs_of(path) -> nn.Module:
    found = transformers.KimiLinearForCausalLM.from_pretrained(
        path,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    lm, info = found
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return lm.requires_grad_(False).eval()


def assert_equal_logits(ours: nn.Module, theirs: nn.Module) -> None:
    tokens = ids(ours.config)
    wanted = theirs(tokens).logits
    assert wanted.std() > 0.3  # logits that could differ
    assert_close(ours(tokens), wanted, TOLERANCE, "one call")
    for cuts in ([70, 1, 1, 1, 1, 1], [1, 74], [31, 33, 11], [64, 1, 10]):
        cache = ours.new_cache(2)
        parts = [ours(part, cache=cache) for part in tokens.split(cuts, 1)]
        assert_close(torch.cat(parts, 1), wanted, TOLERANCE, f"calls of {cuts}")


@ALL
def test_transformers_reads_what_we_save(tmp_path, config):
    ours = lively(interlace.build(config))
    saved = interlace.save(ours, tmp_path, max_shard_bytes=100_000)
    assert "transformers" in saved.readers[0]
    assert_equal_logits(ours, theirs_of(tmp_path))


@ALL
def test_we_read_what_transformers_saves(tmp_path, config):
    # their config is made from ours, so that every field passes through both
    (tmp_path / "ours").mkdir()
    interlace.save(interlace.build(config), tmp_path / "ours")
    theirs = lively(theirs_of(tmp_path / "ours"))
    theirs.save_pretrained(tmp_path / "theirs")
    misnamed = "model.layers.0.block_sparse_moe.gate_proj.weight"
    names = load_file(tmp_path / "theirs" / "model.safetensors")
    # trap 15 of the spec, which an all-dense model escapes
    assert (misnamed in names) == (config.num_experts is not None)
    ours = interlace.load(tmp_path / "theirs").requires_grad_(False)
    assert ours.config == config
    assert_equal_logits(ours, theirs)


def test_their_steps_equal_our_steps(tmp_path):
    config = small()
    ours = lively(interlace.build(config))
    interlace.save(ours, tmp_path)
    theirs, tokens = theirs_of(tmp_path), ids(config, 12)
    cache, past = ours.new_cache(2), None
    for part in tokens.split([9, 1, 1, 1], 1):
        out = theirs(part, cache=past, use_cache=True)
        past = out.past_key_values
        assert_close(ours(part, cache=cache), out.logits, TOLERANCE)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.A_log",
        "model.layers.1.self_attn.dt_bias",
        "model.layers.0.self_attn.q_conv1d.weight",
        "model.layers.3.self_attn.o_norm.weight",
        "model.layers.2.self_attn.kv_a_layernorm.weight",
        "model.layers.2.block_sparse_moe.gate.e_score_correction_bias",
        "model.layers.0.mlp.up_proj.weight",
    ],
)
def test_a_changed_tensor_shows(tmp_path, name):
    ours = lively(interlace.build(small()))
    before = ours(ids(ours.config))
    ours.state_dict()[name].mul_(1.5)
    with pytest.raises(AssertionError, match="error"):
        assert_close(ours(ids(ours.config)), before, 10 * TOLERANCE)

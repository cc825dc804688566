"""Whole models of random odd sizes: one call = any split = a token by token float64 reference.

Sizes, layout and parts are drawn from a seed: Kimi Linear, K3 in every part, and hybrids between
the two that nobody published. No two axes of a model are equal. The reference,
`interlace.check.reference`, shares no code with the layers.
"""

import random

import pytest
import torch

import interlace
from closeness import assert_close
from interlace.check.reference import Reference
from interlace.config import HybridConfig
from tiny_models import lively

SEEDS = range(14)
STYLES = ("linear", "k3", "between")
AXES = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "kda_num_heads",
    "kda_head_dim",
    "intermediate_size",
)


def _layers(rng: random.Random) -> dict:
    """A regular layout of any ratio, or any mixture of the two kinds of layers."""
    count = rng.randint(2, 5)
    if rng.random() < 0.5:
        kda, full = HybridConfig.layout(count, rng.randint(0, 3))
    else:
        full = tuple(i for i in range(1, count + 1) if rng.random() < 0.5)
        kda = tuple(i for i in range(1, count + 1) if i not in full)
    return {"num_hidden_layers": count, "kda_layers": kda, "full_attn_layers": full}


def drawn(seed: int) -> HybridConfig:
    """The config of a seed."""
    rng = random.Random(seed)
    style = STYLES[seed % len(STYLES)]

    def has(chance: float = 0.5) -> bool:
        return style == "k3" or (style == "between" and rng.random() < chance)

    few, wide = rng.sample(range(1, 7), 2), rng.sample(range(7, 60), 12)
    sizes = iter(few + wide)
    heads, kda_heads = next(sizes), next(sizes)
    fields = {
        **_layers(rng),
        "num_attention_heads": heads,
        "kda_num_heads": kda_heads,
        **{name: next(sizes) for name in AXES if not name.endswith("heads")},
        "short_conv_kernel_size": rng.randint(1, 5),
        "q_lora_rank": next(sizes) if has() else None,
        "mla_use_output_gate": has(),
        "gate_lower_bound": -rng.uniform(0.5, 6) if has() else None,
        "use_full_rank_gate": has(),
        "attn_res_block_size": rng.randint(0, 4) if has() else None,
        "tie_word_embeddings": rng.random() < 0.2,
        "dtype": "float64",
    }
    if has():
        fields |= {"hidden_act": "situ", "activation_situ_beta": rng.uniform(1, 5)}
        fields |= {"activation_situ_linear_beta": rng.choice([None, rng.uniform(5, 30)])}
    if rng.random() < 0.7:
        groups = rng.choice([1, 1, 2, 3])
        experts = groups * rng.randint(2, 4)
        kept = rng.randint(1, groups)
        fields |= {
            "num_experts": experts,
            "num_expert_group": groups,
            "topk_group": kept,
            "num_experts_per_token": rng.randint(1, experts // groups * kept),
            "moe_intermediate_size": next(sizes),
            "num_shared_experts": rng.randint(0, 2),
            "first_k_dense_replace": rng.randint(0, 1),
            "moe_renormalize": rng.random() < 0.7,
            "routed_scaling_factor": rng.uniform(0.5, 3),
        }
        if has():
            fields |= {"routed_expert_hidden_size": next(sizes), "latent_moe_use_norm": has(0.7)}
    return HybridConfig(**fields)


def _splits(rng: random.Random, length: int) -> list[list[int]]:
    """Ways to cut a row: a prefill and steps (or steps alone), and two with calls of any size."""
    steps = min(length, 33)
    splits = [[length - steps] * (length > steps) + [1] * steps]
    for _ in range(2):
        cuts = sorted(rng.sample(range(1, length), rng.randint(1, 6)))
        splits.append([b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)])
    return splits


def _shown(seed: int) -> str:
    config = drawn(seed)
    kinds = "".join("GK"[not config.is_global(i)] for i in range(config.num_hidden_layers))
    return f"{seed}-{STYLES[seed % len(STYLES)]}-{kinds}"


@pytest.mark.parametrize("seed", SEEDS, ids=_shown)
def test_one_call_is_any_split_is_the_reference(seed):
    rng = random.Random(1000 + seed)
    config = drawn(seed)
    lm = lively(interlace.build(config, seed=seed, dtype="float64"), seed)
    # one model of each style reads more than two chunks of the delta rule; all lengths are odd
    long = seed % 5 == 1
    length = rng.randrange(129, 140, 2) if long else rng.randrange(9, 34, 2)
    rows = 1 if long else 2
    ids = torch.randint(0, config.vocab_size, (rows, length))
    reference = Reference(config, lm.state_dict())
    exact = torch.stack([reference.forward(row).logits for row in ids])
    assert exact.abs().max() > 1
    assert_close(lm(ids), exact, 1e-10, "one call")
    for cuts in _splits(rng, length):
        cache = lm.new_cache(rows)
        parts = [lm(part, cache=cache) for part in ids.split(cuts, 1)]
        assert_close(torch.cat(parts, 1), exact, 1e-10, f"calls of {cuts}")
        assert cache.lengths.tolist() == [length] * rows


def test_the_seeds_cover_every_part_and_no_two_axes_are_equal():
    configs = [drawn(seed) for seed in SEEDS]
    for config in configs:
        assert len({getattr(config, name) for name in AXES}) == len(AXES)
    for name in ("q_lora_rank", "num_experts", "routed_expert_hidden_size", "attn_res_block_size"):
        assert {getattr(config, name) is None for config in configs} == {True, False}, name
    for name in ("mla_use_output_gate", "use_full_rank_gate", "latent_moe_use_norm"):
        assert {getattr(config, name) for config in configs} == {True, False}, name
    blocks = {config.attn_res_block_size for config in configs}
    assert {0, 1} <= blocks
    assert max(block or 0 for block in blocks) > 1
    assert {config.hidden_act for config in configs} == {"silu", "situ"}
    assert {config.published_class for config in configs} == {"kimi_linear", "kimi_k3"}
    assert any(not config.num_kda_layers for config in configs)
    assert any(not config.num_global_layers for config in configs)
    assert any(config.num_expert_group > config.topk_group for config in configs)

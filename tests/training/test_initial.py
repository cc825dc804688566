import re

import pytest
import torch
from small import TINY

from interlace.errors import ConfigError, InputError
from interlace.models import build
from interlace.training.initial import apply_init
from interlace.training.recipe import InitRule, ModelRecipe
from interlace.training.trainer import model_config


def model(**changes):
    return build(model_config(ModelRecipe(config={**TINY, **changes})), seed=0)


def test_rules_zero_and_scale():
    lm, same = model(), model()
    rules = (
        InitRule(match=r"(o_proj|down_proj)\.weight$", zero=True),
        InitRule(match=r"q_proj", scale=0.5),
    )
    apply_init(lm, ModelRecipe(), rules, seed=1)
    before = dict(same.named_parameters())
    for name, value in lm.named_parameters():
        if re.search(r"(o_proj|down_proj)", name):
            assert not value.any()
        else:
            factor = 0.5 if "q_proj" in name else 1.0
            assert torch.equal(value, before[name] * factor), name


def test_fan_in_and_embedding():
    lm = model(hidden_size=48, intermediate_size=96)
    apply_init(lm, ModelRecipe(linear_init="fan_in", embedding_std=0.7), (), seed=1)
    down = lm.model.layers[0].mlp.down_proj.weight
    assert float(down.detach().std()) == pytest.approx(96**-0.5, rel=0.1)
    assert float(lm.model.embed_tokens.weight.detach().std()) == pytest.approx(0.7, rel=0.1)


@pytest.mark.parametrize("bound", [-5.0, None])
def test_decays_start_log_uniform(bound):
    lm = model(gate_lower_bound=bound, kda_num_heads=6, kda_head_dim=40)
    apply_init(lm, ModelRecipe(decay_range=(5e-4, 0.5)), (), seed=1)
    layer = lm.model.layers[0].self_attn
    z, rate = layer.dt_bias.detach().unflatten(0, (6, 40)), layer.A_log.detach().exp()[:, None]
    decay = 5 * torch.sigmoid(rate * z) if bound else rate * torch.nn.functional.softplus(z)
    assert 5e-4 * 0.99 <= float(decay.min()) < 1e-3
    assert 0.25 < float(decay.max()) <= 0.5 * 1.01
    share = float((decay < (5e-4 * 0.5) ** 0.5).float().mean())
    assert share == pytest.approx(0.5, abs=0.1)


def test_unmatched_rule_and_unknown_field():
    with pytest.raises(InputError, match="matches none"):
        apply_init(model(), ModelRecipe(), (InitRule(match="nothing", zero=True),), seed=1)
    with pytest.raises(InputError, match=r"model\.config\.hidden"):
        model_config(ModelRecipe(config={"hidden": 8}))
    with pytest.raises(ConfigError, match="nothing"):
        model_config(ModelRecipe(preset="nothing"))


def test_layout_follows_the_number_of_layers():
    config = model_config(ModelRecipe(config={"num_hidden_layers": 9}))
    assert config.full_attn_layers == (4, 8, 9)
    assert config.kda_layers == (1, 2, 3, 5, 6, 7)


def test_packed_experts_are_not_trained():
    with pytest.raises(InputError, match=r"without packed experts, .* got 'kimi-k3-small'"):
        model_config(ModelRecipe(preset="kimi-k3-small"))

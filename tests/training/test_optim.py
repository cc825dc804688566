import pytest
import torch
from torch import nn

from interlace.training.optim import (
    Muon,
    has_decay,
    is_hidden_matrix,
    make_optimizers,
    orthogonalize,
)
from interlace.training.recipe import GroupRule, OptimizerRecipe

SHAPES = {
    "model.embed_tokens.weight": (11, 6),
    "model.layers.0.input_layernorm.weight": (6,),
    "model.layers.0.self_attn.q_proj.weight": (8, 6),
    "model.layers.0.self_attn.q_conv1d.weight": (8, 1, 4),
    "model.layers.0.self_attn.A_log": (2,),
    "model.layers.0.self_attn.dt_bias": (8,),
    "model.layers.0.self_attn.o_norm.weight": (4,),
    "model.layers.0.block_sparse_moe.gate.e_score_correction_bias": (3,),
    "model.layers.1.self_attn.kv_a_layernorm.weight": (5,),
    "model.layers.1.self_attn.kv_b_proj.weight": (10, 5),
    "model.layers.1.mlp.up_proj.weight": (9, 6),
    "lm_head.weight": (11, 6),
}


def parameters():
    return {name: nn.Parameter(torch.randn(shape)) for name, shape in SHAPES.items()}


def by_name(optimizers):
    return {
        name: (type(optimizer).__name__, group)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for name in group["names"]
    }


def test_no_decay_on_A_log_dt_bias_norms_and_biases():
    """Fault B99: marks lost or misspelt."""
    groups = by_name(make_optimizers(parameters(), OptimizerRecipe(name="adamw", weight_decay=0.1)))
    assert groups.keys() == SHAPES.keys()
    plain = {name for name, (_, group) in groups.items() if group["weight_decay"] == 0.0}
    assert plain == {name for name in SHAPES if name.endswith(("A_log", "bias", "norm.weight"))}
    assert all(
        group["weight_decay"] == 0.1 for name, (_, group) in groups.items() if name not in plain
    )


@pytest.mark.parametrize(
    "name",
    ["A_log", "layers.0.A_log", "x.dt_bias", "gate.e_score_correction_bias", "a.norm.weight"],
)
def test_names_without_decay_even_as_matrices(name):
    assert not has_decay(name, torch.zeros(2, 3))


def test_a_rule_cannot_bring_decay_back_to_a_norm():
    recipe = OptimizerRecipe(group=(GroupRule(match="norm|A_log", weight_decay=0.5),))
    groups = by_name(make_optimizers(parameters(), recipe))
    assert groups["model.layers.0.self_attn.A_log"][1]["weight_decay"] == 0.0
    assert groups["model.layers.1.self_attn.kv_a_layernorm.weight"][1]["weight_decay"] == 0.0


def test_muon_takes_hidden_matrices_only():
    groups = by_name(make_optimizers(parameters(), OptimizerRecipe(name="muon")))
    muon = {name for name, (kind, _) in groups.items() if kind == "Muon"}
    assert muon == {name for name in SHAPES if name.endswith("proj.weight")}
    assert groups.keys() == SHAPES.keys()
    assert not is_hidden_matrix("lm_head.weight", torch.zeros(2, 3))


def test_group_rules_change_rate_and_decay():
    rules = (
        GroupRule(match=r"kv_b_proj", weight_decay=0.5),
        GroupRule(match=r"proj|lm_head", lr_scale=0.25),
    )
    groups = by_name(
        make_optimizers(
            parameters(), OptimizerRecipe(name="muon", muon_lr=0.02, lr=0.004, group=rules)
        )
    )
    kv_b = groups["model.layers.1.self_attn.kv_b_proj.weight"][1]
    assert (kv_b["base_lr"], kv_b["weight_decay"]) == (0.02, 0.5)
    assert groups["model.layers.1.mlp.up_proj.weight"][1]["base_lr"] == pytest.approx(0.005)
    assert groups["lm_head.weight"][1]["base_lr"] == pytest.approx(0.001)


@pytest.mark.parametrize("shape", [(3, 7, 12), (2, 12, 7), (1, 5, 5)])
def test_orthogonalized_singular_values_are_near_one(shape):
    out = orthogonalize(torch.randn(shape), steps=8, dtype=torch.float64)
    values = torch.linalg.svdvals(out.double())
    assert values.min() > 0.6
    assert values.max() < 1.3
    # the singular vectors stay: the product with the input is symmetric positive
    x = torch.randn(shape, dtype=torch.float64)
    y = orthogonalize(x, steps=8, dtype=torch.float64)
    gram = x @ y.mT
    assert torch.allclose(gram, gram.mT, atol=1e-8)
    assert torch.linalg.eigvalsh(gram).min() > -1e-8


def test_muon_step_by_hand():
    weight = nn.Parameter(torch.randn(6, 3))
    start, grad = weight.detach().clone(), torch.randn(6, 3)
    optimizer = Muon(
        [{"params": [weight]}], lr=0.1, momentum=0.9, weight_decay=0.5, dtype=torch.float32
    )
    momentum = torch.zeros_like(grad)
    for _ in range(2):
        weight.grad = grad
        optimizer.step()
        momentum = 0.9 * momentum + grad
        update = orthogonalize((grad + 0.9 * momentum)[None], 5, torch.float32)[0]
        start = start * (1 - 0.1 * 0.5) - 0.1 * 2**0.5 * update
        assert torch.allclose(weight.detach(), start, atol=1e-6)


def test_muon_batches_do_not_mix_matrices():
    torch.manual_seed(0)
    stack = torch.randn(4, 5, 9)
    together = orthogonalize(stack, dtype=torch.float64)
    for one, whole in zip(stack, together, strict=True):
        assert torch.allclose(orthogonalize(one[None], dtype=torch.float64)[0], whole, atol=1e-10)

"""Routers are balanced while a model trains, and only then."""

import pytest
import torch
from small import TINY, write_recipe

import interlace
from interlace.training.loop import run
from interlace.training.processes import SingleProcess
from interlace.training.recipe import load_recipe
from interlace.training.state import latest_checkpoint, load_state
from interlace.training.trainer import Trainer

MOE = {
    **TINY,
    "num_experts": 4,
    "num_experts_per_token": 1,
    "moe_intermediate_size": 10,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_expert_hidden_size": 12,
    "latent_moe_use_norm": True,
    "attn_res_block_size": 1,
}


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path, **{"model.config": MOE, "schedule": {"steps": 6}})


def biases(out):
    tensors = load_state(latest_checkpoint(out / "checkpoints")).optimizer
    found = {name: value for name, value in tensors.items() if name.startswith("balance.")}
    assert len(found) == 1  # the first layer is dense
    return found


def test_the_bias_is_trained_saved_and_exported(tmp_path, recipe):
    run(recipe, overrides=["run.out=" + str(tmp_path / "one")], progress=False)
    ((name, bias),) = biases(tmp_path / "one").items()
    assert bias.abs().max() > 1e-3
    assert abs(float(bias.mean())) < 1e-6
    exported = interlace.load(tmp_path / "one" / "model", dtype="float32", tokenizer=False)
    router = name.removeprefix("balance.").removesuffix(".bias")
    assert torch.equal(exported.get_submodule(router).e_score_correction_bias, bias)


def test_resume_goes_on_with_the_bias(tmp_path, recipe):
    for out, parts in (("straight", (6,)), ("broken", (3, 6))):
        for steps in parts:
            changes = [f"run.out={tmp_path / out}", f"schedule.steps={steps}"]
            changes += ["schedule.shape=linear-cooldown", "schedule.cooldown=0.5"]
            if steps == 3:
                # as the first half of the six: the rates stay constant to its end
                changes[-1] = "schedule.cooldown=0.01"
            run(recipe, resume=len(parts) > 1 and steps == 6, overrides=changes, progress=False)
    for name, value in biases(tmp_path / "straight").items():
        assert torch.equal(value, biases(tmp_path / "broken")[name])


def test_two_processes_share_the_bias_of_one(tmp_path, recipe):
    for out, processes in (("one", 1), ("two", 2)):
        changes = [f"run.out={tmp_path / out}", f"run.processes={processes}"]
        run(recipe, overrides=[*changes, "schedule.steps=2"], progress=False)
    for name, value in biases(tmp_path / "one").items():
        torch.testing.assert_close(biases(tmp_path / "two")[name], value, rtol=0, atol=1e-3)


def test_evaluation_moves_no_bias(recipe):
    trainer = Trainer(load_recipe(recipe, []), SingleProcess())
    (router,) = trainer.balancer.routers.values()
    tokens = torch.randint(0, 256, (3, 17))
    trainer.lm.eval()
    trainer.lm(tokens)
    trainer.balancer.update(SingleProcess())
    assert not router.e_score_correction_bias.any()
    trainer.lm.train()
    trainer.lm(tokens)
    trainer.balancer.update(SingleProcess())
    assert router.e_score_correction_bias.any()


def test_a_checkpoint_without_the_bias_is_refused(recipe):
    trainer = Trainer(load_recipe(recipe, []), SingleProcess())
    weights = {name: master.detach() for name, master in trainer.masters.items()}
    with pytest.raises(interlace.errors.CheckpointError, match=r"lacks balance\.model\.layers\.1"):
        trainer.restore(weights, {}, 0)


def test_a_vector_is_no_matrix_of_muon(recipe):
    trainer = Trainer(load_recipe(recipe, []), SingleProcess())
    names = {name for group in trainer.optimizers[0].param_groups for name in group["names"]}
    assert not any("res_proj" in name for name in names)
    assert any("experts" in name for name in names)

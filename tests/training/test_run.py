"""Whole runs of a tiny model."""

import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file
from small import read_log, write_recipe
from torch.nn import functional

import interlace
from interlace.errors import InputError, NonFiniteError
from interlace.training import load_recipe, run, trainer
from interlace.training.loop import _starting_point
from interlace.training.state import latest_checkpoint, load_state


@pytest.fixture(autouse=True)
def _quiet_threads():
    yield
    torch.set_num_threads(1)


def train(path, *overrides, resume=False):
    return run(path, resume=resume, overrides=overrides, progress=False)


def with_dropout(monkeypatch):
    """Make every model of the test drop an eighth of its embedding, from the global generator."""
    build = trainer.build

    def build_dropping(*args, **kwargs):
        lm = build(*args, **kwargs)
        lm.model.embed_tokens.register_forward_hook(
            lambda module, args, out: functional.dropout(out, 0.125, module.training)
        )
        return lm

    monkeypatch.setattr(trainer, "build", build_dropping)


def at_step(monkeypatch, number, action):
    """Call `action(trainer)` before the step with this number."""
    step = trainer.Trainer.step

    def stepping(self, batch, index, *args, **kwargs):
        if index == number:
            action(self)
        return step(self, batch, index, *args, **kwargs)

    monkeypatch.setattr(trainer.Trainer, "step", stepping)


def die(_):
    raise OSError("killed")


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_resume_is_exact(tmp_path, monkeypatch, precision):
    """Fault B101 (and B54): 20 steps straight = 10 steps, 3 more, death, resume; dropout on."""
    with_dropout(monkeypatch)
    path = write_recipe(tmp_path, run={"ema": 0.9, "precision": precision})
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(path, f"run.out={straight}")
    with monkeypatch.context() as patched:
        at_step(patched, 13, die)
        with pytest.raises(OSError, match="killed"):
            train(path, f"run.out={broken}")
    assert load_state(latest_checkpoint(broken / "checkpoints")).facts["step"] == 10
    result = train(path, f"run.out={broken}", resume=True)
    assert result.finished
    a, b = (load_state(latest_checkpoint(out / "checkpoints")) for out in (straight, broken))
    for left, right in ((a.weights, b.weights), (a.optimizer, b.optimizer)):
        assert left.keys() == right.keys()
        for name, value in left.items():
            assert torch.equal(value, right[name]), name
    losses = {r["step"]: r["loss"] for r in read_log(straight, "step")}
    again = [(r["step"], r["loss"]) for r in read_log(broken, "step")]
    assert [step for step, _ in again] == [*range(1, 14), *range(11, 21)]
    assert all(losses[step] == loss for step, loss in again)
    for file in (straight / "model").iterdir():
        assert file.read_bytes() == (broken / "model" / file.name).read_bytes()


def test_clocks_add_up_over_a_resume(tmp_path):
    path = write_recipe(tmp_path, schedule={"shape": "linear-cooldown"})
    train(path, "schedule.steps=4")
    before = read_log(tmp_path / "out", "end")[0]["cpu_seconds"]
    # the constant phase ends at step 3 of 4: too late to ask for more steps
    with pytest.raises(InputError, match="constant phase"):
        train(path, "schedule.steps=40", resume=True)
    after = train(path, "schedule.steps=4", resume=True)
    assert after.steps == 4
    # nothing was left to do: no loss, rather than a NaN that is no JSON
    assert after.loss is None
    assert read_log(tmp_path / "out", "end")[1]["loss"] is None
    assert read_log(tmp_path / "out", "end")[1]["cpu_seconds"] >= before > 0


def test_more_steps_in_the_constant_phase(tmp_path, monkeypatch):
    path = write_recipe(
        tmp_path, schedule={"shape": "linear-cooldown"}, run={"checkpoint_every": 5}
    )
    with monkeypatch.context() as patched:
        at_step(patched, 6, die)
        with pytest.raises(OSError, match="killed"):
            train(path)
    assert train(path, "schedule.steps=23", resume=True).steps == 23
    starts = read_log(tmp_path / "out", "start")
    assert [start["recipe"]["schedule"]["steps"] for start in starts] == [20, 23]


LONGER = "data.stage=[{first_step=%d, sequence_length=31, batch=2}]"


def test_rows_grow_longer_on_the_way_and_resume_is_exact(tmp_path, monkeypatch):
    path = write_recipe(tmp_path)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    result = train(path, f"run.out={straight}", LONGER % 12)
    assert result.tokens == 12 * 4 * 19 + 8 * 2 * 31
    with monkeypatch.context() as patched:
        at_step(patched, 12, die)
        with pytest.raises(OSError, match="killed"):
            train(path, f"run.out={broken}")  # no stage yet: step 10 has not met it
    with pytest.raises(InputError, match=r"first_step from 10 on"):
        train(path, f"run.out={broken}", LONGER % 9, resume=True)
    with pytest.raises(InputError, match="steps already taken"):
        train(path, f"run.out={broken}", "data.batch=2", resume=True)
    assert train(path, f"run.out={broken}", LONGER % 12, resume=True).tokens == result.tokens
    a, b = (load_state(latest_checkpoint(out / "checkpoints")) for out in (straight, broken))
    assert all(torch.equal(value, b.weights[name]) for name, value in a.weights.items())


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("[{first_step=5, sequence_length=9, batch=3}]", "data.stage.batch must be a multiple"),
        ("[{first_step=0, sequence_length=9, batch=2}]", "first_step must be positive"),
        (
            "[{first_step=5,sequence_length=9,batch=2}, {first_step=5,sequence_length=8,batch=2}]",
            "later than the one before",
        ),
        ("[{first_step=5, sequence_length=9, batch=2, overruns=1.5}]", "between 0 and 1"),
        ("[{first_step=5, sequence_length=9, batch=2, overruns=0.5}]", "at least 512 tokens"),
    ],
)
def test_stages_that_cannot_be(tmp_path, stages, message):
    path = write_recipe(tmp_path)
    with pytest.raises(InputError, match=message):
        train(path, f"data.stage={stages}", "run.processes=2")
    assert not (tmp_path / "out").exists()


def test_what_a_run_leaves(tmp_path):
    path = write_recipe(tmp_path, run={"ema": 0.9, "export": "averaged"})
    result = train(path)
    out = tmp_path / "out"
    assert json.loads(json.dumps(result.to_dict()))["steps"] == 20
    assert result.tokens == 20 * 4 * 19
    steps = read_log(out, "step")
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert {"loss", "lr", "grad_norm", "tokens_per_second", "cpu_seconds", "wall_seconds"} <= steps[
        0
    ].keys()
    evals = read_log(out, "eval")
    assert [record["step"] for record in evals] == [10, 20]
    assert result.bits_per_byte == evals[-1]["bits_per_byte"]
    layer = evals[-1]["global_layers"][0]
    assert layer["layer"] == 1
    assert 0 < layer["top_mass"] <= 1
    assert layer["spread"] > 0
    assert layer["worth"] != 0
    exported = {}
    for file in (out / "model").glob("*.safetensors"):
        exported |= load_file(file)
    averaged = load_state(latest_checkpoint(out / "checkpoints")).optimizer
    name = "model.layers.1.self_attn.o_proj.weight"
    # a model that is neither published class is saved with the names of K3
    exported = {key.removeprefix("language_model."): value for key, value in exported.items()}
    assert exported[name].dtype == torch.bfloat16
    assert torch.equal(exported[name], averaged[f"averaged.{name}.weight"].bfloat16())
    assert exported.keys() == load_state(latest_checkpoint(out / "checkpoints")).weights.keys()


def test_two_processes_agree_with_one(tmp_path):
    path = write_recipe(tmp_path, schedule={"steps": 6})
    one, two = tmp_path / "one", tmp_path / "two"
    train(path, f"run.out={one}")
    train(path, f"run.out={two}", "run.processes=2")
    a, b = (load_state(latest_checkpoint(out / "checkpoints")).weights for out in (one, two))
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=1e-4, atol=1e-4)
    assert read_log(two, "step")[-1]["cpu_seconds"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_leaves(tmp_path, monkeypatch, number):
    path = write_recipe(tmp_path)
    at_step(monkeypatch, 3, lambda _: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    result = train(path)
    assert signal.getsignal(number) is before
    assert not result.finished
    assert result.model is None
    assert result.steps == 5
    assert load_state(latest_checkpoint(tmp_path / "out" / "checkpoints")).facts["step"] == 5


def poison_weight(t):
    t.masters["model.layers.0.self_attn.dt_bias"].data[3] = float("nan")


def poison_gradient(t):
    t.lm.model.layers[1].mlp.up_proj.weight.register_hook(lambda g: g * float("inf"))


def poison_activation(t):
    t.lm.model.layers[1].self_attn.register_forward_hook(lambda m, a, out: out / 0)


@pytest.mark.parametrize(
    ("poison", "named"),
    [
        (poison_weight, r"the weight model\.layers\.0\.self_attn\.dt_bias"),
        (poison_gradient, r"the gradient of model\.layers\.1\.mlp\.up_proj\.weight"),
        (poison_activation, r"the output of model\.layers\.1\.self_attn\."),
    ],
)
def test_the_first_non_finite_tensor_is_named(tmp_path, monkeypatch, poison, named):
    path = write_recipe(tmp_path)
    at_step(monkeypatch, 12, lambda t: (poison(t), t.publish()))
    with pytest.raises(NonFiniteError, match=f"step 12 .*{named}"):
        train(path)
    state = load_state(latest_checkpoint(tmp_path / "out" / "checkpoints"))
    assert state.facts["step"] == 10
    assert all(bool(torch.isfinite(value).all()) for value in state.weights.values())


def test_a_run_starts_from_a_saved_model(tmp_path):
    path = write_recipe(tmp_path, schedule={"steps": 1, "warmup": 0}, run={"eval_every": 1})
    first = train(path)
    start = ("model.start='out/model'", f"run.out={tmp_path / 'next'}", "optimizer.lr=1e-9")
    train(path, *start, "optimizer.muon_lr=1e-9")
    saved = interlace.load(first.model, dtype="float32").state_dict()
    taken = load_state(latest_checkpoint(tmp_path / "next" / "checkpoints")).weights
    assert all(torch.allclose(taken[name], saved[name], atol=1e-6) for name in taken)
    with pytest.raises(InputError, match=r"out/model; give model.preset and model.config"):
        train(path, *start, "model.config.intermediate_size=9", f"run.out={tmp_path / 'third'}")
    with pytest.raises(InputError, match="leave out init"):
        train(path, *start, "init=[{match='lm_head', zero=true}]")


def test_a_run_is_not_started_over_an_old_one(tmp_path):
    path = write_recipe(tmp_path, schedule={"steps": 1})
    with pytest.raises(InputError, match="start without resume"):
        train(path, resume=True)
    train(path)
    with pytest.raises(InputError, match="already holds step-00000001"):
        train(path)
    assert _starting_point(load_recipe(path), True) is not None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.files=['none*.txt']", "matches none"),
        ("data.files=['doc2.txt']", "at least one byte"),
        ("data.files=['held.txt']", "at least one byte"),
        ("model.config.vocab_size=200", "vocab_size"),
        ("model.preset='kimi-linear-tiny'", r"set model.config = \{vocab_size = 257\}"),
        ("model.config.hidden_sise=8", "hidden_sise"),
        ("init=[{match='nothing_has_this', zero=true}]", "must match a parameter"),
        ("model.start='nowhere/model/at/all'", "nowhere/model"),
        ("model={start='default', linear_init='fan_in'}", "leave out model.linear_init"),
        ("schedule.stepss=3", "nearest"),
        ("run.out=recipe.toml", "run.out must be a folder"),
        ("run.out=recipe.toml/x", "run.out must be a folder"),
    ],
)
def test_bad_input_writes_nothing(tmp_path, monkeypatch, override, message):
    path = write_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InputError, ValueError), match=message):
        train(path, override)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())

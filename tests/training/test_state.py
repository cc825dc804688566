import json

import pytest
import torch

from interlace.errors import CheckpointError
from interlace.training.state import RunState, latest_checkpoint, load_state, save_state


def state(step):
    return RunState(
        {"a.weight": torch.full((2, 3), float(step))},
        {
            "adamw.a.weight.step": torch.tensor(float(step)),
            "random": torch.arange(4, dtype=torch.uint8),
        },
        {"step": step, "cpu_seconds": 1.5},
    )


def test_round_trip_keeps_bits_and_the_last_two(tmp_path):
    for step in (0, 10, 20, 30):
        save_state(tmp_path, state(step))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000020", "step-00000030"]
    loaded = load_state(latest_checkpoint(tmp_path))
    assert loaded.facts["step"] == 30
    assert torch.equal(loaded.weights["a.weight"], state(30).weights["a.weight"])
    assert loaded.optimizer["random"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "damage", ["cut", "changed", "no_optimizer", "no_state", "half_state", "other_step"]
)
def test_a_checkpoint_interrupted_between_files_is_passed_over(tmp_path, damage, caplog):
    """Fault B101: stale or missing side files."""
    old = save_state(tmp_path, state(10))
    new = save_state(tmp_path, state(20))
    weights = new / "weights.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif damage == "changed":
        weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    elif damage == "no_optimizer":
        (new / "optimizer.safetensors").unlink()
    elif damage == "no_state":
        (new / "state.json").unlink()
    elif damage == "half_state":
        (new / "state.json").write_text((new / "state.json").read_text()[:40])
    else:
        (new / "optimizer.safetensors").write_bytes((old / "optimizer.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="must be whole"):
        load_state(new)
    assert latest_checkpoint(tmp_path) == old
    assert "step-00000020 is passed over" in caplog.text


def test_a_write_that_dies_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    old = save_state(tmp_path, state(10))

    def die(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr("interlace.training.state.json.dumps", die)
    with pytest.raises(OSError, match="disk full"):
        save_state(tmp_path, state(20))
    monkeypatch.undo()
    assert latest_checkpoint(tmp_path) == old
    # and the leftovers are no obstacle
    assert save_state(tmp_path, state(20)) == latest_checkpoint(tmp_path)


def test_no_pickle_and_no_checkpoint(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    path = save_state(tmp_path, state(1))
    assert {p.suffix for p in path.iterdir()} == {".safetensors", ".json"}
    assert json.loads((path / "state.json").read_text())["cpu_seconds"] == 1.5

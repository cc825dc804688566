"""The limits file: its format, its place, and that it is written whole."""

import json
import math
from unittest.mock import patch

import pytest
import torch
from bench_sizes import PROBE, TINY

from interlace.bench import limits
from interlace.bench.cold import Cold
from interlace.bench.limits import measure, turns, write
from interlace.bench.timing import Comparison, Run
from interlace.bench.work import Work
from interlace.config import PRESETS, preset
from interlace.planner import hardware

EFFICIENCY = {
    f"{kind}_{phase}" for kind in ("mla", "kda", "linear") for phase in ("decode", "prefill")
}


@pytest.fixture(scope="module")
def measured():
    ticks = []
    found = measure(probe=PROBE, tick=lambda: ticks.append(1), **TINY)
    assert len(ticks) == turns(2)
    return found


def test_format_is_what_the_planner_reads(measured, tmp_path):
    again = json.loads(write(measured, tmp_path / "a" / "limits.json").read_text())
    assert again["format"] == 2
    for rate in ("bf16_flops", "fp32_flops", "read_bandwidth", "copy_bandwidth"):
        assert again[rate] > 0
    assert set(again["efficiency"]) == EFFICIENCY
    assert all(0 < share <= 1 for share in again["efficiency"].values())
    assert set(again["seconds_per_layer_call"]) == {"mla", "kda", "mlp"}
    assert all(0 < t < 10 for t in again["seconds_per_layer_call"].values())
    assert again["about"]["torch"] == torch.__version__
    assert again["machine"].endswith("threads")
    assert again["date"][:2] == "20"


def test_every_run_is_kept(measured):
    assert set(measured["runs"]) == EFFICIENCY | {"rates", "fixed"}
    assert all(len(part["runs"]) == 2 for part in measured["runs"].values())
    text = json.dumps(measured)
    assert "NaN" not in text
    assert math.isfinite(measured["others_share"])


def test_share_is_the_bound_over_what_is_left_of_the_time():
    runs = [
        Run({"loop": 1.0, "operator": t, "next to nothing": 0.5}, 0.0) for t in (8.5, 4.5, 16.5)
    ]
    # 40 bytes at 20 a second take 2 s at least; 8, 4 and 16 s were spent
    assert limits._share(Comparison(runs), Work(read=40), 20, "read") == 0.25
    assert limits._share(Comparison(runs[:1]), Work(read=4000), 20, "read") == 1.0


def test_no_model_has_the_size_of_the_probe():
    for name in PRESETS:
        config = preset(name)
        assert limits.PROBE.heads not in {config.num_attention_heads, config.kda_num_heads}
        assert limits.PROBE.hidden != config.hidden_size
    assert limits.PROBE.depth not in {4096, 32_768, 65_536, 131_072}


def test_the_planner_reads_what_was_written(measured, tmp_path):
    machine = hardware.measured(write(measured, tmp_path / "limits.json"))
    assert machine.copy_bandwidth == measured["copy_bandwidth"]
    assert machine.efficiency == measured["efficiency"]
    assert machine.seconds_per_layer_call == measured["seconds_per_layer_call"]
    assert "threads" in machine.title


def test_place_is_where_the_planner_looks(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert write({"format": 1}) == hardware.limits_path()
    assert hardware.limits_path().is_relative_to(tmp_path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = write({"format": 1}, tmp_path / "limits.json")
    with pytest.raises(TypeError):
        write({"format": object()}, path)
    assert json.loads(path.read_text()) == {"format": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["limits.json"]


def test_the_scores_of_the_attention_probe_are_close_together():
    """Far apart, their exponentials are denormal and ten times as slow as those of a model."""
    seen = []

    def record(q, latent, w_uk, w_uv):
        keys = torch.einsum("md,hnd->mhn", latent[0, :, : w_uk.shape[-1]].float(), w_uk.float())
        scores = torch.einsum("hn,mhn->hm", q[0, 0, :, : w_uk.shape[1]].float(), keys)
        seen.append(scores * q.shape[-1] ** -0.5)
        return q

    probe = limits.Probe(heads=3, rank=256, depth=700)
    with patch.object(limits, "latent_attention", record):
        limits._latents(probe, Cold(1 << 21), 1, probe.depth)()
    assert seen[0].std() < 2

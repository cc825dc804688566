"""The table of machines, and the file of the machine at hand."""

import json
import math

import pytest

from interlace.errors import InputError
from interlace.planner import plan
from interlace.planner.hardware import (
    EFFICIENCIES,
    LAYER_CALLS,
    known,
    limits_path,
    measured,
)

LIMITS = {
    "format": 2,
    "date": "2026-11-30T12:00:00+00:00",
    "machine": "a machine",
    "bf16_flops": 4e11,
    "matmul_flops": 3e11,
    "loops": "native",
    "fp32_flops": 2e11,
    "read_bandwidth": 3e10,
    "copy_bandwidth": 5e10,
    "efficiency": dict.fromkeys(EFFICIENCIES, 0.5),
    "seconds_per_layer_call": {"mla": 1e-4, "kda": 2e-4, "mlp": 0.0},
}


@pytest.fixture
def cache_home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "interlace").mkdir()
    return tmp_path


def test_the_table_names_every_machine_with_its_source():
    machines = known()
    assert {"h100", "h200", "b200", "mi300x", "mi355x", "l40s", "rtx5090", "cpu"} <= set(machines)
    assert sum(name.startswith("m") and "Apple" in m.title for name, m in machines.items()) >= 1
    for machine in machines.values():
        assert machine.source
        assert machine.title
        assert machine.memory > 10**10
        assert 10 < machine.bf16_flops / machine.read_bandwidth < 500
        assert all(0 < share <= 1 for share in machine.efficiency.values())


def test_the_file_is_in_the_cache_folder_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert limits_path() == tmp_path / "interlace" / "limits.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert limits_path() == tmp_path / "home" / ".cache" / "interlace" / "limits.json"


def test_the_machine_at_hand_is_read_and_its_fixed_times_are_added(cache_home):
    limits_path().write_text(json.dumps(LIMITS))
    machine = measured()
    assert (machine.name, machine.title, machine.memory) == ("measured", "a machine", None)
    p = plan("kl2", context="4Ki", hardware="measured")
    step = {part.name: part for part in p.decode()}
    # one MLA layer, three KDA layers, four feed-forwards
    assert step["layer calls"].seconds == pytest.approx(1e-4 + 3 * 2e-4)
    latents = 576 * 2 * 4096
    assert step["attention over the cache"].flops == 2 * 32 * (576 + 512) * 4096
    assert step["attention over the cache"].seconds == pytest.approx(
        max(latents / 3e10, 2 * 32 * 1088 * 4096 / 4e11) / 0.5
    )
    state = 2 * (3 * 32 * 128 * 128 * 4 + 3 * 3 * 3 * 4096 * 2)
    assert step["recurrent state"].seconds == pytest.approx(state / 5e10 / 0.5)
    # no memory is known of it
    assert p.fits is None


def test_float32_has_its_own_rate(cache_home):
    limits_path().write_text(json.dumps(LIMITS))
    wide, narrow = (
        plan("kl2", context="64Ki", hardware="measured", weights=weights, cache_dtype="bf16")
        for weights in ("fp32", "bf16")
    )

    def attention(p):
        return next(part.seconds for part in p.decode() if part.name.startswith("attention"))

    assert attention(wide) == pytest.approx(2 * attention(narrow))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "format must be 2, got 1"),
        ({"loops": "mine"}, "loops must be native or torch, got 'mine'"),
        ({"matmul_flops": None}, "matmul_flops must be a number above 0, got None"),
        ({"bf16_flops": 0}, "bf16_flops must be a number above 0, got 0"),
        ({"read_bandwidth": "fast"}, "read_bandwidth must be a number above 0, got 'fast'"),
        ({"copy_bandwidth": math.inf}, "copy_bandwidth must be a number above 0, got inf"),
        ({"fp32_flops": True}, "fp32_flops must be a number above 0, got True"),
        ({"efficiency": {}}, "lacks 'mla_decode'"),
        (
            {"efficiency": dict.fromkeys(EFFICIENCIES, 1.5)},
            "mla_decode must be a number above 0 and at most 1, got 1.5",
        ),
        (
            {"seconds_per_layer_call": dict.fromkeys(LAYER_CALLS, -1)},
            "mla must be a number .*, got -1",
        ),
        ({"efficiency": 3}, "is no file of limits of this version"),
    ],
)
def test_a_broken_file_is_one_sentence_that_says_what_to_do(cache_home, change, message):
    limits_path().write_text(json.dumps({**LIMITS, **change}))
    with pytest.raises(InputError, match=message) as caught:
        measured()
    assert str(caught.value).endswith("run 'interlace bench limits' again.")


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_what_is_no_object_is_refused(cache_home, text):
    limits_path().write_text(text)
    with pytest.raises(InputError, match="run 'interlace bench limits' again"):
        measured()


def test_a_missing_file_says_how_to_make_it(cache_home):
    with pytest.raises(InputError, match="does not exist; run 'interlace bench limits' first"):
        plan("mid", context=1, hardware="measured")


def test_what_bench_writes_is_what_the_planner_reads(cache_home):
    from interlace.bench.limits import write

    assert write(LIMITS) == limits_path()
    assert measured().bf16_flops == 4e11

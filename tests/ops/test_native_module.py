"""The native module: its checks, its instruction sets, one OpenMP runtime, and life without it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from interlace.ops.native import core
from interlace.ops.norm import rms_norm

native = core()
pytestmark = pytest.mark.skipif(native is None, reason="the native core was not built here")
STUB = Path(__file__).parents[2] / "src/interlace/_native.pyi"


@pytest.fixture(params=native.levels() if native else [])
def level(request):
    before = native.level()
    native.use_level(request.param)
    yield request.param
    native.use_level(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 3, 16, 67])
def test_rms_norm_is_that_of_torch(level, dtype, width):
    torch.manual_seed(width)
    x, weight = torch.randn(5, width, dtype=dtype), torch.randn(width, dtype=dtype)
    out = torch.full((5, width + 2), float("nan"), dtype=dtype)
    native.rms_norm(x, weight, out[:, :width], 1e-5)
    expected = rms_norm(x, weight, 1e-5)
    assert (out[:, :width] - expected).abs().max() <= (1e-6 if dtype == torch.float32 else 4e-3)
    assert out[:, width:].isnan().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": "text"}, "x must be a tensor on the CPU"),
        ({"x": torch.ones(2, 3, device="meta")}, "x must be a tensor on the CPU"),
        ({"x": torch.ones(2, 3, dtype=torch.float64)}, "x must be float32 or bfloat16"),
        ({"x": torch.ones(())}, "x must have 1 to 6 axes, got 0"),
        ({"x": torch.ones(3)}, "out has rows = 2 where x has 1"),
        ({"x": torch.ones(3, 2).t()}, "x must be contiguous along its last axis"),
        ({"weight": torch.ones(4)}, "weight has D = 4 where x has 3"),
        ({"weight": torch.ones(3).bfloat16()}, "weight must be float32"),
        ({"out": torch.ones(1, 3)}, "out has rows = 1 where x has 2"),
        ({"out": torch.ones(1, 3).expand(2, 3)}, "out must have rows that do not overlap"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(change, message):
    given = {"x": torch.ones(2, 3), "weight": torch.ones(3), "out": torch.ones(2, 3)} | change
    with pytest.raises(ValueError, match=f"rms_norm: {message}"):
        native.rms_norm(**given, eps=1e-5)


def test_no_rows_are_no_work(level):
    native.rms_norm(torch.ones(0, 3), torch.ones(3), torch.ones(0, 3), 1e-5)


def test_the_stub_names_what_the_module_has():
    public = {name for name in dir(native) if not name.startswith("_")}
    assert set(re.findall(r"^(?:def|class) (\w+)", STUB.read_text(), re.M)) == public


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(ValueError, match="no instruction set is called sse9"):
        native.use_level("sse9")


def test_the_process_has_one_openmp_runtime():
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("only Linux lists the libraries of a process")
    runtimes = {line.split()[-1] for line in maps.read_text().splitlines() if "omp" in line}
    runtimes = {os.path.realpath(path) for path in runtimes if re.search(r"lib(g|i)?omp", path)}
    assert len(runtimes) == 1


def test_the_environment_turns_it_off():
    program = "from interlace.ops.native import core, absence; print(core(), absence())"
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"INTERLACE_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.startswith("None INTERLACE_NATIVE=0 turns the native core off")


def test_a_message_names_the_other_input_of_several():
    def ones(*shape):
        return torch.ones(shape).bfloat16()

    with pytest.raises(ValueError, match=r"windows\[0\] has B = 3 where x\[0\] has 2;"):
        native.convolve(
            [ones(2, 4, 5)], [ones(5, 3)], [ones(3, 2, 5)], [ones(2, 4, 5)], [ones(2, 2, 5)], False
        )

"""Cold operands: slices in turn, never twice before the buffer is through, real numbers."""

import pytest
import torch

from interlace.bench.cold import Cold
from interlace.bench.loops import LIMITS, Loops
from interlace.ops.native import core


def test_slices_come_in_turn_and_go_round():
    cold = Cold(1000)
    assert cold.nbytes == 1000
    first, second = cold.take(10, 20), cold.take(10, 20)
    assert second.data_ptr() - first.data_ptr() == 448  # 400 bytes, to the next 64
    assert cold.take(10, 20).data_ptr() == first.data_ptr()
    with pytest.raises(ValueError, match="1200 bytes exceed"):
        cold.take(300, dtype=torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_numbers_are_normal_in_either_width(dtype):
    x = Cold(1 << 18).take(1 << 15, dtype=dtype).float()
    assert abs(float(x.mean())) < 0.05
    assert abs(float(x.std()) - 1) < 0.05
    assert len(x.unique()) > 1000


def test_loops_say_what_a_turn_moves_and_leave_normal_numbers():
    cold = Cold(1 << 16)
    loops = Loops(cold, matrix=24)
    assert (loops.amount["read"], loops.amount["copy"]) == (1 << 16, 1 << 17)
    assert loops.amount["matmul"] == 2 * 24**3
    assert loops.native == (core() is not None)
    for name in ("bf16", "fp32"):
        assert (loops.amount[name] != 2 * 24**3) == loops.native
    before = cold.whole(torch.float32).clone()
    for name in LIMITS:
        loops[name]()
    assert torch.equal(cold.whole(torch.float32), -before)

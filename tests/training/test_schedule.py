import itertools

import pytest

from interlace.training.recipe import ScheduleRecipe
from interlace.training.schedule import cooldown_start, rate


def test_warmup_rises_to_one_and_starts_above_zero():
    schedule = ScheduleRecipe(steps=50, warmup=4, shape="linear-cooldown")
    assert [rate(schedule, step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_cosine_falls_to_the_floor_at_the_last_step():
    schedule = ScheduleRecipe(steps=101, warmup=1, shape="cosine", floor=0.1)
    rates = [rate(schedule, step) for step in range(1, 101)]
    assert rates[0] == 1.0
    assert rates[-1] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates))
    middle = ScheduleRecipe(steps=102, warmup=1, shape="cosine", floor=0.1)
    assert rate(middle, 51) == pytest.approx(0.55)


def test_linear_cooldown_is_constant_then_straight():
    schedule = ScheduleRecipe(
        steps=91, warmup=5, shape="linear-cooldown", floor=0.02, cooldown=1 / 3
    )
    start = cooldown_start(schedule)
    assert start == 61
    assert {rate(schedule, step) for step in range(4, start + 1)} == {1.0}
    falls = [rate(schedule, step) - rate(schedule, step + 1) for step in range(start, 90)]
    assert max(falls) == pytest.approx(min(falls))
    assert rate(schedule, 90) == pytest.approx(0.02)


def test_steps_beyond_the_end_stay_at_the_floor():
    schedule = ScheduleRecipe(steps=10, warmup=0, floor=0.3)
    assert rate(schedule, 40) == pytest.approx(0.3)


def test_no_warmup():
    assert rate(ScheduleRecipe(steps=10, warmup=0), 0) == 1.0

"""Choosing a way: the first that does not refuse, and never another than the one asked for."""

import logging

import pytest

from interlace.errors import BackendUnavailable
from interlace.ops.dispatch import Backend, choose, explain

SMALL = Backend(name="toy.small", refuses=lambda n: "n must be below 3" if n > 2 else None, run=min)
EVEN = Backend(name="toy.even", refuses=lambda n: "n must be even" if n % 2 else None, run=max)


def test_auto_takes_the_first_that_does_not_refuse():
    assert choose([SMALL, EVEN], 2) is SMALL
    assert choose([SMALL, EVEN], 4) is EVEN
    assert choose([EVEN, SMALL], 2) is EVEN


def test_a_named_way_never_falls_back():
    assert choose([SMALL, EVEN], 2, "toy.even") is EVEN
    with pytest.raises(BackendUnavailable, match=r"toy.small cannot .* below 3"):
        choose([SMALL, EVEN], 4, "toy.small")
    with pytest.raises(BackendUnavailable, match=r"one of toy.small, toy.even, got 'toy.fast'"):
        choose([SMALL, EVEN], 4, "toy.fast")


def test_a_way_that_passes_runs_when_named():
    slow = Backend(
        name="toy.slow", refuses=SMALL.refuses, passes=lambda n: "max is faster", run=min
    )
    assert choose([slow, EVEN], 2) is EVEN
    assert choose([slow, EVEN], 2, "toy.slow") is slow
    with pytest.raises(BackendUnavailable, match="below 3"):
        choose([slow, EVEN], 4, "toy.slow")
    assert explain([slow], 2) == [("toy.slow", "max is faster")]
    assert explain([slow], 4) == [("toy.slow", "n must be below 3")]


def test_all_refusals_are_in_the_message_and_in_the_table():
    with pytest.raises(BackendUnavailable, match=r"below 3; toy.even: n must be even"):
        choose([SMALL, EVEN], 5)
    assert explain([SMALL, EVEN], 4) == [("toy.small", "n must be below 3"), ("toy.even", None)]


def test_a_choice_is_logged_once(caplog):
    record = Backend(name="toy.logged", refuses=lambda _: None, run=abs)
    with caplog.at_level(logging.INFO, logger="interlace"):
        for _ in range(3):
            choose([SMALL, record], 9)
    lines = [r.getMessage() for r in caplog.records if "toy.logged" in r.getMessage()]
    assert lines == ["using toy.logged (toy.small: n must be below 3)"]

"""Paired runs: interleaved, all kept, busy ones repeated a few times and then kept."""

import pytest

from interlace.bench import timing
from interlace.bench.timing import BUSY, REPEATS, Comparison, Run, busy, paired
from interlace.errors import InputError


class Clock:
    """A clock that only the systems move; `others` is what others take in each run."""

    def __init__(self, others: list[float]) -> None:
        self.now, self.order, self._others = 0.0, [], iter(others)

    def system(self, name: str, *seconds: float):
        left = list(seconds)

        def call() -> None:
            self.order.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call

    def share(self):
        clock = self

        class Share:
            def __enter__(self):
                self.share = next(clock._others, 0.0)
                return self

            def __exit__(self, *_):
                pass

        return Share()

    def run(self, systems, **options):
        return paired(systems, clock=lambda: self.now, share=self.share, **options)


def test_runs_alternate_and_every_one_is_kept():
    clock = Clock([])
    out = clock.run(
        {"a": clock.system("a", 2.0), "b": clock.system("b", 1.0)}, runs=3, min_seconds=0.5
    )
    assert "".join(clock.order) == "ab" + "ab" + "ba" + "ab"
    assert [run.seconds for run in out.runs] == [{"a": 2.0, "b": 1.0}] * 3
    assert out.ratio("a", "b") == 2.0
    assert out.calls == {"a": 1, "b": 1}


def test_a_quick_system_is_called_until_its_time_can_be_read():
    clock = Clock([])
    out = clock.run({"quick": clock.system("q", 0.5, 0.25)}, runs=2, min_seconds=1.0)
    assert out.calls == {"quick": 4}
    assert len(clock.order) == 2 + 2 * 4
    assert out.median("quick") == 0.25  # the first call paid for setting up


def test_a_quick_system_is_not_called_more_often_than_allowed():
    clock = Clock([])
    systems = {"quick": clock.system("q", 0.25), "slow": clock.system("s", 0.5)}
    out = clock.run(systems, runs=2, min_seconds=1.0, most_calls=3)
    assert out.calls == {"quick": 3, "slow": 2}


def test_busy_runs_are_repeated_then_kept_and_told(caplog):
    high = 2 * BUSY
    clock = Clock([high, 0.0, *[high] * 9])
    ticks = []
    with caplog.at_level("INFO", logger="interlace"):
        out = clock.run(
            {"a": clock.system("a", 1.0)}, runs=3, tick=lambda: ticks.append(1), what="the test"
        )
    assert [run.others_share for run in out.repeated] == [high] * REPEATS
    assert [run.others_share for run in out.runs] == [0.0, high, high]
    assert len(ticks) == 3
    assert "of the CPU during the test" in caplog.text
    assert len(out.to_dict()["repeated_runs"]) == REPEATS
    told = busy(out.to_dict()["runs"])
    assert told is not None
    assert told.startswith("others took more than 6% of the CPU in 2 of 3 runs, 12% at most:")
    assert busy([{"others_share": BUSY}]) is None


def test_ratio_is_the_median_of_ratios_not_of_medians():
    runs = [Run({"a": a, "b": b}, 0.0) for a, b in [(10.0, 1.0), (4.0, 4.0), (9.0, 3.0)]]
    assert Comparison(runs).ratio("a", "b") == 3
    assert Comparison(runs).median("a") / Comparison(runs).median("b") == 3
    runs = [Run({"a": a, "b": b}, 0.0) for a, b in [(10.0, 1.0), (4.0, 2.0), (3.0, 3.0)]]
    assert Comparison(runs).ratio("a", "b") == 2


def test_nothing_to_time_is_refused():
    with pytest.raises(InputError, match="a system and a run"):
        paired({})
    with pytest.raises(InputError, match="got 1 and 0"):
        paired({"a": dict}, runs=0)


def test_share_of_others_is_read_from_the_kernel(monkeypatch):
    busy_seconds, own, wall = iter([10.0, 13.0]), iter([5.0, 6.0]), iter([100.0, 102.0])
    machine = timing.OthersShare.__module__
    monkeypatch.setattr(f"{machine}._busy_seconds", lambda: next(busy_seconds))
    monkeypatch.setattr(f"{machine}.time.process_time", lambda: next(own))
    monkeypatch.setattr(f"{machine}.time.perf_counter", lambda: next(wall))
    monkeypatch.setattr(f"{machine}.os.cpu_count", lambda: 4)
    with timing.OthersShare() as others:
        pass
    # 3 s of work on the machine, 1 s of it ours, of 2 s on 4 cores
    assert others.share == 2 / 8

"""Which snapshots stay: a bounded number, dense near the end."""

from hypothesis import given, settings
from hypothesis import strategies as st

from interlace.caches.snapshots import Snapshots


def ends(kept):
    return [lengths[0] for lengths in kept.lengths]


def test_the_newest_stay_dense_and_the_rest_thins_out():
    kept = Snapshots(4)
    for length in range(1, 65):
        kept.keep([length], {})
    found = ends(kept)
    assert found[-1] == 64
    gaps = [b - a for a, b in zip([0, *found], found, strict=False)]
    assert gaps == sorted(gaps, reverse=True)
    assert len(found) == 4


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 900), min_size=1, max_size=80), st.integers(2, 9))
def test_at_most_so_many_and_always_the_newest(steps, most):
    kept, length = Snapshots(most), 0
    for step in steps:
        length += step
        kept.keep([length, length], {})
        assert len(kept.lengths) <= most
        assert kept.lengths[-1] == (length, length)


def test_going_back_reads_again_in_proportion():
    kept, interval = Snapshots(8), 512
    for number in range(1, 401):
        now = number * interval
        kept.keep([now], {})
        found = [0, *ends(kept)]
        # the prefixes that come off worst end one token before a snapshot
        for nearest, prefix in zip(found, [n - 1 for n in found[1:]], strict=False):
            assert prefix - nearest <= 3 * (now - prefix) + interval

"""What an operator must do, by hand, at the published sizes."""

from interlace.bench import work
from interlace.bench.work import Work


def test_published_sizes_by_hand():
    # 1,088 x 2 operations per head and cached token; 181 per byte at 96 heads
    decode = work.latent_decode_work(96, 512, 64, 1000)
    assert decode == Work(operations=96 * 1000 * 2176, read=1000 * 1152)
    assert round(decode.operations / decode.read) == 181
    # 640 operations per head and pair
    assert work.latent_prefill_work(3, 320, 4).operations == 3 * 10 * 640
    assert work.latent_prefill_work(3, 320, 4, 5).operations == 3 * (10 + 20) * 640
    # 111,616 per head and token at chunks of 32
    assert work.delta_chunk_work(5, 128, 7, chunk=32).operations == 5 * 7 * 111_616
    assert work.delta_step_work(96, 128, 128).copied == 96 * 2**14 * 8
    assert work.linear_work(3, 10, 20) == Work(operations=1200, read=400)
    assert work.expert_work(2, 3, 5, 10, 20) == Work(operations=6 * 1200, read=5 * 1200)
    assert work.pass_work(3, 4) == Work(copied=14)


def test_bound_is_the_largest_share():
    what = Work(operations=100, read=10, copied=30)
    rates = {"bf16": 100.0, "read": 5.0, "copy": 20.0}
    assert (what.limit(rates), what.bound(rates)) == ("read", 2.0)
    assert what.limit(rates | {"bf16": 10.0}) == "bf16"
    assert what.limit(rates | {"copy": 10.0}) == "copy"

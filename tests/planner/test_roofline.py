"""Seconds: each kind of work by hand, the bound of a hybrid, and the published times."""

import pytest

from interlace.errors import InputError
from interlace.planner import calibrate, plan, roofline
from interlace.planner.compare import all_mla
from interlace.planner.hardware import hardware, known
from interlace.planner.plan import plan_for
from interlace.planner.source import find

H200 = {"bandwidth": 4.8e12, "rate": 989e12}


def parts(found):
    return {part.name: part for part in found}


# -- each kind of work


def test_decode_is_bytes_over_bandwidth_by_kind_of_work():
    shares = known()["h200"].efficiency
    p = plan("kimi-linear-48b", context="1Mi", batch=3, hardware="h200")
    step = parts(p.decode())
    latents = 3 * 7 * 576 * 2 * 2**20
    assert step["attention over the cache"].nbytes == latents
    assert step["attention over the cache"].seconds == pytest.approx(
        latents / H200["bandwidth"] / shares["mla_decode"]
    )
    # read and written: 20 states in float32, windows in bf16
    state = 2 * 3 * (40 * 2**20 + 1_474_560)
    assert step["recurrent state"].nbytes == state
    assert step["recurrent state"].seconds == pytest.approx(
        state / H200["bandwidth"] / shares["kda_decode"]
    )
    assert {part.bound for part in step.values()} == {"memory"}
    assert p.seconds_per_token == pytest.approx(sum(part.seconds for part in step.values()))
    assert p.tokens_per_second == pytest.approx(3 / p.seconds_per_token)


def test_weights_that_a_step_reads_are_those_that_its_tokens_choose():
    p = plan("kl-moe", context=1, hardware="h200")
    (mixture, layers), *_ = [f for f in p.description.feed_forwards if f[0].experts]
    assert mixture.read_share(1) == pytest.approx(8 / 64)
    assert mixture.read_share(2) == pytest.approx(1 - (56 / 64) ** 2)
    routed = layers * 64 * 3 * 2304 * 1024 * 2
    read = parts(p.decode())["weights"].nbytes
    # of the embedding one row is read, and the last norm is left out
    unread = routed * 7 / 8 + (4096 - 1) * 2304 * 2 + 2304 * 2
    assert read == p.nbytes("weights") - unread


def test_decode_of_96_heads_is_bound_by_the_rate_on_a_cpu_and_by_memory_on_a_gpu():
    at_gpu = plan("kimi-k3", context="128K", hardware="h200", weights="bf16")
    at_cpu = plan("kimi-k3", context="128K", hardware="cpu", weights="bf16")
    attention = [parts(p.decode())["attention over the cache"] for p in (at_gpu, at_cpu)]
    assert [part.bound for part in attention] == ["memory", "rate"]
    # 2 x 96 heads x (576 + 512) operations for 1,152 bytes
    assert round(attention[0].flops / attention[0].nbytes) == 181
    small = plan("kimi-linear-48b", context="128K", hardware="h200")
    one = parts(small.decode())["attention over the cache"]
    assert round(one.flops / one.nbytes) == 60


@pytest.mark.parametrize(
    ("model", "bound"), [("kimi-k3", 93 / 24), ("kimi-linear-48b", 27 / 7)], ids=["K3", "48B"]
)
def test_no_hybrid_gains_more_than_layers_over_global_layers(model, bound):
    last = 0.0
    for context in (10**5, 10**6, 10**8, 10**11):
        hybrid = plan_for(find(model), context=context, hardware="h200", weights="bf16")
        full = plan_for(all_mla(find(model)), context=context, hardware="h200", weights="bf16")
        gain = full.seconds_per_token / hybrid.seconds_per_token
        assert last < gain < bound
        last = gain
    assert last == pytest.approx(bound, rel=1e-3)


def test_prefill_counts_pairs_and_reads_weights_once_per_chunk():
    p = plan("mid", context=4096, prefill_chunk=1024, hardware="h200")
    found = parts(p.prefill())
    pairs = 4096 * 4097 // 2
    # 2 global layers, 16 heads, a key of 192 and a value of 128
    assert found["attention"].flops == 2 * 2 * 16 * 320 * pairs
    # keys and values of what lies before each chunk, made again from the latents
    past = 1024 + 2048 + 3072
    assert found["keys and values again"].flops == 2 * 2 * past * 512 * 16 * 256
    once = parts(p.with_request(prefill_chunk=4096).prefill())
    assert "keys and values again" not in once
    assert found["weights"].nbytes == pytest.approx(4 * once["weights"].nbytes, rel=0.1)


def test_devices_share_the_work_but_not_the_latent():
    one = parts(plan("kimi-k3", context="1M", hardware="h200").decode())
    eight = parts(plan("kimi-k3", context="1M", hardware="h200", tp=8).decode())
    assert eight["attention over the cache"].nbytes == one["attention over the cache"].nbytes
    assert eight["recurrent state"].nbytes * 8 == one["recurrent state"].nbytes
    # all but down-projections to a latent, of queries, keys and experts, which are whole everywhere
    assert one["weights"].nbytes / 8 < eight["weights"].nbytes < one["weights"].nbytes / 5


def test_a_time_needs_a_machine():
    with pytest.raises(InputError, match="hardware must be named, such as h200 or measured"):
        _ = plan("mid", context=1).seconds_per_token
    assert roofline.seconds(()) == 0.0


# -- published times


@pytest.mark.parametrize("name", ["h100", "b200"])
def test_shares_fitted_at_512k_predict_the_published_times_at_1m(name):
    found = calibrate.fit(name)
    shares = (calibrate.ATTENTION, found.decode_rest, found.prefill_rest)
    assert len(set(found.machine.efficiency.values())) <= 3
    assert all(0 < share <= 1 for share in shares)
    half, whole = 2**19, 2**20
    # the two that are fitted
    assert found.ratios["decode"][half] == pytest.approx(1.8, rel=1e-6)
    assert found.ratios["prefill"][half] == pytest.approx(2.3, rel=1e-6)
    # the two that are predicted
    assert found.ratios["decode"][whole] == pytest.approx(2.2, rel=0.15)
    assert found.ratios["prefill"][whole] == pytest.approx(2.9, rel=0.15)
    # and what they are, for the page
    assert round(found.ratios["decode"][whole], 2) == 2.27
    assert round(found.ratios["prefill"][whole], 2) == 2.80


def test_the_table_of_hardware_holds_the_fitted_shares():
    found, table = calibrate.fit("h100"), known()["h100"].efficiency
    assert table["mla_decode"] == table["mla_prefill"] == calibrate.ATTENTION
    assert round(found.decode_rest, 3) == table["linear_decode"] == table["kda_decode"]
    assert round(found.prefill_rest, 4) == table["linear_prefill"] == table["kda_prefill"]


def test_a_ratio_that_no_share_gives_is_an_error(monkeypatch):
    # attention that fast needs a rest that is faster than its limit
    monkeypatch.setattr(calibrate, "ATTENTION", 50.0)
    with pytest.raises(ValueError, match=r"no share in .* gives a ratio of 1.8"):
        calibrate.fit("h100")


def test_published_throughput_is_more_than_a_roofline_explains():
    # the report: 11.48 ms against 1.84 at 1M tokens, each at the batch that its memory allows
    published = 11.48 / 1.84
    assert round(published, 2) == 6.24
    gains = {}
    for name, memory in (("h100", 80 * 10**9), ("h200", 141 * 10**9)):
        found = calibrate.throughput_ratio(hardware(name), devices=8, memory=memory)
        gains[name] = round(found["ratio"], 2)
        assert found["hybrid_batch"] > found["all_mla_batch"]
        # attention alone gives 3.86, and nothing here gives more
        assert found["ratio"] < 27 / 7
    assert gains == {"h100": 3.48, "h200": 3.52}
    assert {name: round(published / gain, 2) for name, gain in gains.items()} == {
        "h100": 1.79,
        "h200": 1.77,
    }

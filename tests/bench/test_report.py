"""Pages, files and pictures of a measurement."""

import json

import pytest

from interlace.bench import plot, report
from interlace.errors import InputError


def run(**seconds):
    return {"seconds": seconds, "others_share": 0.01}


def record(kind, tokens, runs, notes=()):
    names = runs[0]["seconds"]
    medians = {name: sorted(r["seconds"][name] for r in runs)[len(runs) // 2] for name in names}
    return {
        "kind": kind,
        "family": "mid",
        "tokens": tokens,
        "notes": dict(notes),
        "median_seconds": medians,
        "runs": runs,
        "repeated_runs": [],
    }


PEER = "transformers mid"
NOTES = {PEER: {"version": "9.9", "form": "eager", "logit_gap": 0.01, "skipped": {"sdpa": "big"}}}


@pytest.fixture
def measured():
    runs = [
        run(**{"mid": 0.002, PEER: 0.02, "mid-mla": 0.004}),
        run(**{"mid": 0.001, PEER: 0.05, "mid-mla": 0.003}),
        run(**{"mid": 0.004, PEER: 0.04, "mid-mla": 0.012}),
    ]
    prefill = [run(mid=0.5), run(mid=0.25), run(mid=2.0)]
    return report.result(
        "model",
        [
            record("decode", 0, runs, NOTES),
            record("decode", 64, runs[:1]),
            record("prefill", 10, prefill),
        ],
        ["mid", "mid-mla", "transformers"],
    )


def test_page_has_medians_ratios_of_each_run_and_peers(measured):
    text = report.page(measured)
    assert "| cached tokens | 0 | 64 |" in text
    assert "| mid | 2.0 | 2.0 |" in text
    assert f"| {PEER} | 40.0 | 20.0 |" in text
    assert "| mid | 20 |" in text  # 10 tokens in half a second
    assert f"| decode, {PEER} | 0 | 10.00 | 10.00, 10.00, 50.00 |" in text
    assert "| decode, mid-mla | 0 | 3.00 | 2.00, 3.00, 3.00 |" in text
    assert (
        "version 9.9; form eager; logits differ by 0.01 of the largest; sdpa left out: big" in text
    )
    assert "Others took 1.0% of the CPU" in text


def test_a_busy_machine_is_told_on_the_page(measured):
    measured["results"][2]["runs"][0]["others_share"] = 0.5
    assert "**Others took more than 6% of the CPU in 1 of 7 runs, 50% at most" in report.page(
        measured
    )


def test_files_carry_date_and_machine_and_every_run(measured, tmp_path):
    paths = report.write(measured, tmp_path / "new")
    date = measured["date"][:10]
    assert [p.suffix for p in paths] == [".json", ".md"]
    assert all(p.name.startswith(f"model-mid-mid-mla-transformers-{date}-") for p in paths)
    assert paths[0].stem.endswith("c")
    again = json.loads(paths[0].read_text())
    assert again == measured
    assert paths[1].read_text() == report.page(measured)
    assert len(list((tmp_path / "new").iterdir())) == 2


def test_plots(measured, tmp_path):
    pytest.importorskip("matplotlib")
    plot.require_plot(tmp_path / "a.svg")
    plot.save(measured, tmp_path / "a.svg")
    assert "mid-mla" in (tmp_path / "a.svg").read_text()
    shares = [{"size": "s", "operator": "o", "detail": "d", "share": 0.5}]
    plot.save({**measured, "what": "ops", "results": shares}, tmp_path / "b.png")
    assert (tmp_path / "b.png").stat().st_size > 1000
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(InputError, match=r"must end in .png, .svg, .pdf, got 'c.txt'"):
        plot.require_plot(tmp_path / "c.txt")


def test_a_missing_matplotlib_is_told_before_anything_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(plot, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install 'interlace"):
        plot.require_plot(tmp_path / "a.png")

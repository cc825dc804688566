"""Pictures of a plan, and the page whose numbers are those of the plan."""

import json
import random
import re
from pathlib import Path

import pytest

from interlace.errors import InputError
from interlace.planner import coefficients, page, picture, plan
from interlace.planner.compare import compared
from interlace.planner.plan import plan_for


@pytest.fixture(autouse=True)
def few_controls(monkeypatch):
    monkeypatch.setattr(coefficients, "DEVICES", (1, 2, 8))
    monkeypatch.setattr(coefficients, "BATCHES", (1, 3, 64))


def plans(model="kimi-k3", beside=("all-mla", "mha", "kimi-k2"), **options):
    first = plan(model, **options)
    return [first, *(plan_for(compared(first.description, n), **options) for n in beside)]


def data_of(html):
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    return json.loads(found)


# -- what the page's script does, in the same few lines


def growing(terms, tokens):
    return sum(each * (tokens if most is None else min(tokens, most)) for each, most in terms)


def evaluate(page_data, number, context, batch, weights, cache, devices):
    model = page_data["models"][number]
    held = model["weights"][weights][str(devices)]
    kept = model["kept"][cache][str(devices)]
    place = page_data["batches"].index(batch)
    found = {"weights": sum(size for _, size in held["items"]), "cache": 0, "state": 0}
    for item in kept["items"]:
        most = item["most_tokens"]
        tokens = context if most is None else min(context, most)
        found[item["group"]] += batch * (item["per_sequence"] + item["per_token"] * tokens)
    found["total"] = sum(found.values()) + model["activations"][place]
    if "seconds" in held:
        lines = [
            max(growing(line["memory"], context), growing(line["rate"], context))
            for line in kept["lines"]
        ]
        found["seconds"] = held["seconds"][place] + batch * sum(lines)
    return found


CASES = {
    "kimi-k3": {"beside": ("all-mla", "mha", "kimi-k2"), "hardware": "h200", "tp": 16},
    # windows, and experts packed as published
    "gpt-oss-120b": {"beside": ("gemma-2-2b", "qwen3-next-80b"), "hardware": "cpu"},
    # without a machine, in long chunks
    "kl-moe": {"beside": ("all-mla",), "prefill_chunk": 4096, "window": "full"},
}


@pytest.mark.parametrize("model", CASES)
def test_the_page_says_what_the_plan_says_at_20_points(model):
    options = dict(CASES[model])
    beside = options.pop("beside")
    asked = plans(model, beside, context="128K", **options)
    found = data_of(page.page(asked))
    drawn = random.Random(0)
    low, high = found["contexts"]
    for _ in range(20):
        number = drawn.randrange(len(asked))
        entry = found["models"][number]
        context = int(low * (high / low) ** drawn.random())
        weights, cache = drawn.choice(list(entry["weights"])), drawn.choice(list(entry["kept"]))
        devices = int(drawn.choice(list(entry["kept"][cache])))
        batch = drawn.choice(found["batches"])
        ours = evaluate(found, number, context, batch, weights, cache, devices)
        p = asked[number].with_request(
            context=context, batch=batch, weights=weights, cache_dtype=cache, tp=devices
        )
        for group in ("weights", "cache", "state"):
            assert ours[group] == p.nbytes(group), (group, p.request)
        assert ours["total"] == p.total_bytes, p.request
        if p.machine is not None:
            assert ours["seconds"] == pytest.approx(p.seconds_per_token, rel=1e-9), p.request


def test_a_mixer_that_chooses_tokens_grows_at_two_rates():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = {**CONFIG_MAPPING["deepseek_v32"]().to_dict(), "dtype": "bfloat16"}
    first = plan(config, context="128K", hardware="h200")
    found = data_of(page.page([first]))
    for context in (1024, 2048, 2049, 10**6):
        p = first.with_request(context=context)
        ours = evaluate(found, 0, context, 1, "as-stored", "bfloat16", 1)
        assert ours["seconds"] == pytest.approx(p.seconds_per_token, rel=1e-9)
        assert ours["total"] == p.total_bytes


def test_the_page_needs_no_network_and_no_name_ends_its_script():
    asked = plans("mid", (), context="4K")
    named = plan_for(compared(asked[0].description, "all-mla"), context="4K")
    from dataclasses import replace

    evil = replace(named, description=replace(named.description, name="</script><b>"))
    html = page.page([asked[0], evil])
    assert data_of(html)["models"][1]["name"] == "</script><b>"
    # the one address is the name of a notation
    assert set(re.findall(r"https?://[^\"' ]+", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe)|src=|@import|fetch\(", html)


def test_devices_that_do_not_divide_a_model_are_left_out(monkeypatch):
    monkeypatch.setattr(coefficients, "DEVICES", (1, 3, 32, 64))
    found = data_of(page.page(plans("kimi-k3", ("qwen3-4b",), context="1M")))
    k3, small = (set(model["kept"]["bfloat16"]) for model in found["models"])
    assert k3 == {"1", "3", "32"}
    assert small == {"1", "32"}


# -- pictures


def test_the_page_is_written_without_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setattr(picture, "find_spec", lambda _: None)
    path = tmp_path / "a.html"
    picture.require(path)
    picture.save(plans("mid", (), context="4K"), path)
    assert data_of(path.read_text())["models"][0]["name"] == "mid"
    with pytest.raises(InputError, match=r"needs matplotlib for pictures: pip install"):
        picture.require(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a.txt", r"must end in .png, .svg, .pdf, .html, got 'a.txt'"),
        ("a", "must end in"),
        ("no/folder/a.html", "must name a file in a folder that exists"),
    ],
)
def test_a_picture_that_cannot_be_written_is_refused_first(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        picture.require(tmp_path / name)


def test_a_failed_picture_leaves_nothing(monkeypatch, tmp_path):
    def fails(plans):
        raise OSError("disk full")

    monkeypatch.setattr(picture, "page", fails)
    with pytest.raises(InputError, match="disk full"):
        picture.save([], tmp_path / "a.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_drawn(tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"a{suffix}"
    picture.save(plans("kimi-linear-48b", ("all-mla",), context="1M", hardware="h200"), path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    again = tmp_path / f"b{suffix}"
    picture.save(plans("kimi-linear-48b", ("all-mla",), context="1M", hardware="h200"), again)
    assert again.read_bytes() == path.read_bytes()


def test_a_picture_names_what_is_not_counted(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "a.svg"
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        picture.save(plans("mid", ("deepseek-v3",), context="4K"), path)
    assert "note on deepseek-v3: not counted: 1 layer that predict" in path.read_text()


def test_curves_reach_beyond_what_was_asked():
    found = picture.contexts(1_000_000)
    assert found[0] == 1024
    assert found[-1] == 4_000_000
    assert 1_000_000 in found
    assert found == sorted(set(found))
    assert picture.contexts(1)[-1] == 4096


def test_the_template_is_part_of_the_package():
    assert Path(page.__file__).with_name("page.html").is_file()

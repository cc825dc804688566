"""A saved cache is the same to the bit, for its own model only, and whole or not there."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import interlace
from closeness import assert_close
from interlace.caches import HybridCache
from interlace.caches.file import read_cache, save_cache
from interlace.config import sizes
from interlace.errors import CacheError
from interlace.models.identity import identity
from tiny_models import K3_STYLE, ids, lively, model, small


@pytest.fixture(scope="module")
def lm():
    return model()


def contents(cache):
    """Everything in a cache, bit for bit; room that was reserved aside."""
    end = int(cache.lengths.max())
    values = [
        (name, value[:, :end] if name == "latent" else value)
        for layer in (*cache.layers, *cache._snapshots.states)
        for name, value in layer.tensors.items()
    ]
    raw = [
        (name, x.dtype, tuple(x.shape), x.contiguous().view(-1).view(torch.uint8).tolist())
        for name, x in values
    ]
    return cache.lengths.tolist(), cache.snapshots, cache.dtype, cache.max_snapshots, raw


def read(lm, rows=2, tokens=9, **options):
    cache = lm.new_cache(rows, **options)
    lm(ids(tokens, rows), cache=cache)
    return cache


@pytest.mark.parametrize("style", [{}, K3_STYLE], ids=["kimi_linear", "k3_mixers"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_b45_loaded_is_saved_to_the_bit_and_goes_on_the_same(tmp_path, style, dtype):
    lm = model(**style)
    cache = read(lm, dtype=dtype, max_snapshots=5)
    cache.snapshot()
    lm(ids(4), cache=cache, lengths=[4, 1])
    cache.snapshot()
    cache.save(tmp_path / "c")
    again = interlace.load_cache(tmp_path / "c", lm)
    assert contents(again) == contents(cache)
    assert cache.snapshots == (9, (13, 10))
    for tokens in (ids(3), ids(1), ids(2)):
        assert torch.equal(lm(tokens, cache=cache), lm(tokens, cache=again))
    again.restore(9)
    assert_close(lm(ids(5), cache=again)[:, -1], lm(torch.cat([ids(9), ids(5)], 1))[:, -1], 3e-2)


def test_b46_a_loaded_cache_lacks_nothing(lm, tmp_path):
    cache = read(lm, rows=3)
    cache.snapshot()
    lm(ids(6, 3), cache=cache, lengths=[6, 0, 2])
    cache.save(tmp_path / "c")
    again = interlace.load_cache(tmp_path / "c", lm, capacity=40)
    assert again.capacity == 40
    for one in (cache, again):
        lm(ids(1, 3), cache=one)
    for change in (
        lambda x: HybridCache.merge([x, x.select([1])]),
        lambda x: x.reorder([2, 0, 0]) or x,
        lambda x: x.trim(9) or x,
    ):
        cache, again = change(cache), change(again)
        again.save(tmp_path / "d")
        assert (
            contents(again) == contents(cache) == contents(interlace.load_cache(tmp_path / "d", lm))
        )
        if cache.batch == 4:
            cache, again = cache.select([0, 1, 2]), again.select([0, 1, 2])
            for one in (cache, again):
                one.trim(0)
                lm(ids(9, 3), cache=one)
                one.snapshot()


def test_b52_a_file_has_both_parts_of_each_latent(lm, tmp_path):
    for number, tokens in enumerate([1, 5, 17, 40]):
        cache = read(lm, rows=1, tokens=tokens, capacity=99)
        cache.save(tmp_path / str(number))
        stored = load_file(tmp_path / str(number))
        held = {name: x.nbytes for name, x in stored.items() if name != "lengths"}
        assert sum(held.values()) == sizes.cache_bytes(lm.config, 1, tokens, "float32")
        latents = sum(n for name, n in held.items() if name.endswith("latent"))
        assert latents == tokens * (22 + 6) * 4 * lm.config.num_global_layers


def test_continued_in_another_process(tmp_path):
    code = (
        "import sys, torch, interlace\n"
        "lm = interlace.load(sys.argv[1]); cache = interlace.load_cache(sys.argv[2], lm)\n"
        "print(lm(torch.tensor([[7, 3]]), cache=cache)[0, -1].tolist())\n"
    )
    lm = model()
    interlace.save(lm, tmp_path / "model")
    cache = read(lm, rows=1)
    cache.save(tmp_path / "c")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model"), str(tmp_path / "c")],
        capture_output=True,
        text=True,
        check=True,
    )
    got = torch.tensor(json.loads(done.stdout))
    assert_close(got, lm(torch.tensor([[7, 3]]), cache=cache)[0, -1], 1e-5)


def test_identity_is_of_config_and_weights(lm, tmp_path):
    mine = identity(lm)
    interlace.save(lm, tmp_path / "m")
    assert identity(interlace.load(tmp_path / "m")) == mine
    assert identity(model()) == mine
    narrow = identity(interlace.load(tmp_path / "m", dtype="bfloat16"))
    assert (narrow.config, narrow.dtype) == (mine.config, "bfloat16")
    other = lively(interlace.build(small(), seed=3), seed=2)
    assert identity(other).config == mine.config
    assert identity(other).weights != mine.weights
    assert identity(model(rms_norm_eps=1e-3)).config != mine.config
    twin = model()
    for name, value in twin.state_dict().items():
        flat = value.view(-1)
        before = flat[0].item()
        flat[0] = -before - 1
        assert identity(twin).weights != mine.weights, name
        flat[0] = before
        if flat.numel() > 1200:
            flat[1030] += 1  # behind the first 4 KiB, where nobody looks
        assert identity(twin) == mine


def refused(path, lm, *messages):
    for message in messages:
        with pytest.raises(CacheError, match=message) as caught:
            interlace.load_cache(path, lm)
        assert str(path) in str(caught.value)


def test_caches_of_other_models_are_refused(lm, tmp_path):
    file = tmp_path / "c"
    read(lm).save(file)
    refused(
        file, lively(interlace.build(small(), seed=3), seed=2), "same config with other weights"
    )
    refused(file, model(routed_scaling_factor=1.5), "another config")
    refused(file, model("bfloat16"), "weights in float32, and this model has bfloat16")


def test_b48_a_file_without_a_state_is_no_cache(lm, tmp_path):
    cache = read(lm)
    cache.snapshot()
    cache.save(tmp_path / "c")
    held = load_file(tmp_path / "c")
    about = header(tmp_path / "c")["__metadata__"]
    for name in held:
        rest = {other: value for other, value in held.items() if other != name}
        save_file(rest, tmp_path / "d", metadata=about)
        missing = {"lengths": "no list of token counts", "snapshots.lengths": "holds snapshots"}
        refused(tmp_path / "d", lm, missing.get(name, f"lacks {name}"))
    for name, value in held.items():
        changed = {**held, name: value[..., :-1].contiguous()}
        save_file(changed, tmp_path / "d", metadata=about)
        refused(tmp_path / "d", lm, "must be a whole cache file")
        changed = {**held, name: value.double()}
        save_file(changed, tmp_path / "d", metadata=about)
        refused(tmp_path / "d", lm, "must be a whole cache file")
    save_file({**held, "layers.9.latent": torch.zeros(2)}, tmp_path / "d", metadata=about)
    refused(tmp_path / "d", lm, "holds layers.9.latent")
    save_file({**held, "lengths": held["lengths"] - 1}, tmp_path / "d", metadata=about)
    refused(tmp_path / "d", lm, "does not fit lengths")


def header(file):
    data = file.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def test_files_that_are_damaged_newer_or_something_else_are_refused(lm, tmp_path):
    good, file = tmp_path / "c", tmp_path / "d"
    read(lm).save(good)
    data = good.read_bytes()
    for cut in (0, 7, 8, 40, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:cut])
        refused(file, lm, "truncated or damaged")
    file.write_bytes(data + b"x")
    refused(file, lm, "truncated or damaged")
    held, about = load_file(good), header(good)["__metadata__"]
    for metadata, message in (
        ({**about, "version": "2"}, "format 1 at most, got 2; read it with a newer version"),
        ({**about, "version": "many"}, "its version is 'many'"),
        ({**about, "max_snapshots": "0"}, "its max_snapshots is '0'"),
        ({**about, "format": "pt"}, "another safetensors file"),
        (None, "another safetensors file"),
    ):
        save_file(held, file, metadata=metadata)
        refused(file, lm, message)
    refused(tmp_path / "none", lm, "no file")
    refused(tmp_path, lm, "no file")


def test_saving_is_whole_or_not_at_all(lm, tmp_path, monkeypatch):
    file = tmp_path / "c"
    first = read(lm)
    first.save(file)
    before = file.read_bytes()

    def stop(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "fsync", stop)
        with pytest.raises(CacheError, match="No space left on device; name another file"):
            read(lm, tokens=12).save(file)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["c"]
    with pytest.raises(CacheError, match=r"cannot be saved to .*none"):
        first.save(tmp_path / "none" / "c")
    with pytest.raises(CacheError, match="got a folder"):
        first.save(tmp_path)
    first.save(file)
    assert file.read_bytes() == before  # the same cache, the same file
    first._unfinished = True
    with pytest.raises(CacheError, match="must be whole"):
        first.save(file)


def test_a_cache_does_not_keep_its_model_alive(tmp_path):
    lm = model()
    cache = read(lm)
    del lm
    with pytest.raises(CacheError, match="it is gone; save first"):
        cache.save(tmp_path / "c")


def test_an_empty_cache_and_one_without_latents_are_saved_too(tmp_path):
    for lm in (model(), model(kda_layers=(1, 2, 3), full_attn_layers=())):
        for cache in (lm.new_cache(2), read(lm)):
            cache.save(tmp_path / "c")
            assert contents(interlace.load_cache(tmp_path / "c", lm)) == contents(cache)


def test_tensors_of_a_prompt_are_stored_beside_it(lm, tmp_path):
    save_cache(read(lm), tmp_path / "c", identity(lm), {"tokens": torch.tensor([3, 1])})
    cache, prompt = read_cache(tmp_path / "c", lm.new_cache, identity(lm))
    assert cache.length == 9
    assert {name: x.tolist() for name, x in prompt.items()} == {"tokens": [3, 1]}

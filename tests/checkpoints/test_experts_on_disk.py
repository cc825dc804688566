"""Experts left on disk: the same bits from a bounded cache, under a real limit of memory."""

import io
import json
import subprocess
import sys

import pytest
import torch

import interlace
from interlace.cli import main
from interlace.config.sizes import (
    expert_slots,
    packed_expert_bytes,
    weight_bytes,
    weight_bytes_beside_disk,
)
from interlace.errors import ConfigError, InputError
from interlace.layers.packed import PackedLinear
from interlace.models.identity import identity
from packed_models import packed_config, packed_model
from tiny_models import ids, model


@pytest.fixture
def folder(tmp_path):
    interlace.save(packed_model(vocab_size=256), tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("slots", [1, 5])
@torch.no_grad()
def test_logits_are_those_of_the_resident_model_to_the_bit(folder, slots):
    one = packed_expert_bytes(packed_config())
    resident = interlace.load(folder, experts="packed")
    lean = interlace.load(folder, experts="disk", expert_cache=slots * one + 7)
    assert lean.expert_cache.slots == slots
    for tokens in (ids(), ids(3, 1), ids()):
        assert torch.equal(lean(tokens), resident(tokens))


def test_weights_in_memory_are_the_formula_and_the_rest_is_mapped(folder):
    lean = interlace.load(folder, experts="disk")
    config = lean.config
    # two experts of a token in each of four layers
    assert lean.expert_cache.slots == expert_slots(config) == 8
    mapped = {
        b.data_ptr() for m in lean.modules() if isinstance(m, PackedLinear) for b in m.buffers()
    }
    tensors = [*lean.parameters(), *lean.buffers()]
    held = sum(t.numel() * t.element_size() for t in tensors if t.data_ptr() not in mapped)
    assert held == weight_bytes_beside_disk(config, "float32")
    assert held == weight_bytes(config, "float32") - 4 * packed_expert_bytes(config)


@torch.no_grad()
def test_the_expert_that_was_not_used_for_longest_goes(folder):
    lean = interlace.load(folder, experts="disk", expert_cache=2 * 9792)
    cache = lean.expert_cache
    a, b, c = lean.model.layers[1].block_sparse_moe.experts
    x = torch.randn(2, 64)
    reads = []
    for expert in (a, b, a, c, a, b):
        before = cache.bytes_read
        cache(expert, x)
        reads.append((cache.bytes_read - before) // 9792)
    assert reads == [1, 1, 0, 1, 0, 1]


def test_a_gradient_through_an_expert_that_was_replaced_is_refused(folder):
    lean = interlace.load(folder, experts="disk", expert_cache=9792)
    a, b, _ = lean.model.layers[1].block_sparse_moe.experts
    x = torch.randn(2, 64, requires_grad=True)
    y = lean.expert_cache(a, x)
    lean.expert_cache(b, x.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_it_is_the_same_model_to_a_cache_and_to_a_file(folder, tmp_path):
    resident, lean = interlace.load(folder), interlace.load(folder, experts="disk")
    assert identity(lean) == identity(resident)
    interlace.save(lean, tmp_path / "again")
    name = "model.safetensors"
    assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_what_cannot_be_on_disk_is_named(folder, tmp_path):
    interlace.save(model(), tmp_path / "plain")
    with pytest.raises(InputError, match="experts='disk' needs a checkpoint with packed experts"):
        interlace.load(tmp_path / "plain", experts="disk")
    with pytest.raises(InputError, match="expert_cache needs experts='disk', got None"):
        interlace.load(folder, expert_cache=10**6)
    with pytest.raises(InputError, match="computes on the CPU, got the device meta"):
        interlace.load(folder, device="meta", experts="disk")
    with pytest.raises(ConfigError, match=r"hold one of 9\.8 kB .* got 100 B"):
        interlace.load(folder, experts="disk", expert_cache=100)


# -- the command line


def generate(capsys, *arguments):
    status = main(["generate", *arguments, "--prompt", "abc", "--max-tokens", "6"])
    out, err = capsys.readouterr()
    return status, out, err


def test_the_summary_says_what_a_token_read(folder, capsys):
    status, out, _ = generate(capsys, str(folder), "--json", "--experts", "disk")
    assert status == 0
    found = json.loads(out)
    _, plain, _ = generate(capsys, str(folder), "--json")
    assert json.loads(plain)["token_ids"] == found["token_ids"]
    assert json.loads(plain)["expert_bytes_read"] == 0
    # every expert that was used was read at least once
    assert found["expert_bytes_read"] % 9792 == 0
    assert found["expert_bytes_read"] >= 4 * 2 * 9792
    tokens = found["cached_tokens"]
    assert found["expert_bytes_per_token"] == found["expert_bytes_read"] / tokens
    _, _, err = generate(capsys, str(folder), "--experts", "disk", "--expert-cache", "20kB")
    assert "read from disk per token" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["kimi-k3-tiny", "--experts", "disk"], "needs a checkpoint with packed experts"),
        (["FOLDER", "--expert-cache", "1GB"], "--expert-cache needs --experts disk"),
        (
            ["FOLDER", "--experts", "disk", "--expert-cache", "7 eggs"],
            "--expert-cache must be bytes",
        ),
        (["FOLDER", "--experts", "disk", "--expert-cache", "9kB"], "hold one of 9.8 kB"),
    ],
)
def test_options_that_do_not_fit_are_refused(folder, capsys, arguments, words):
    status, out, err = generate(capsys, *[str(folder) if a == "FOLDER" else a for a in arguments])
    assert (status, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


# -- a real limit

LIMITED = """
import gc, resource, sys
import torch
import interlace
torch.set_num_threads(1)
torch.set_grad_enabled(False)
folder, allowed = sys.argv[1], int(sys.argv[2])
tokens = torch.arange(11)[None] % 61
resident = interlace.load(folder, experts="packed")
wanted = resident(tokens)
del resident
gc.collect()
used = next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + allowed, used + allowed))
try:
    interlace.load(folder, experts="packed")
    sys.exit("the limit limits nothing")
except (OSError, MemoryError):
    pass  # only after this block is what the failed call held free
gc.collect()
lean = interlace.load(folder, experts="disk")
print(torch.equal(lean(tokens), wanted), lean.expert_cache.bytes_read)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts otherwise elsewhere")
def test_experts_of_four_times_the_allowed_memory(tmp_path, monkeypatch):
    config = packed_config(routed_expert_hidden_size=256, moe_intermediate_size=352, num_experts=60)
    # any bytes serve, and drawing and rounding 60 million weights takes longer
    monkeypatch.setattr(PackedLinear, "pack", any_bytes)
    monkeypatch.setattr(torch.Tensor, "normal_", lambda self, *_, **__: self.fill_(0.05))
    interlace.save(interlace.build(config), tmp_path / "x")
    allowed = 60 * 4 * packed_expert_bytes(config) // 4
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "x"), str(allowed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    equal, read = (done.stdout + " 0 0").split()[:2]
    assert equal == "True", done.stdout + done.stderr
    assert int(read) >= 8 * packed_expert_bytes(config)


def any_bytes(self, weight):
    generator = torch.Generator().manual_seed(weight.shape[0])
    self.weight_packed.random_(0, 256, generator=generator)
    self.weight_scale.random_(120, 123, generator=generator)


def test_chat_says_the_same_with_experts_on_disk(capsys, monkeypatch, folder):
    said, asked, load = [], [], interlace.load

    def noted(*args, **options):
        asked.append(options.get("experts"))
        return load(*args, **options)

    monkeypatch.setattr(interlace, "load", noted)
    for how in ("packed", "disk"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
        options = ["--format", "plain", "--max-tokens", "9", "--experts", how]
        assert main(["chat", str(folder), *options]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
    assert asked == ["packed", "disk"]

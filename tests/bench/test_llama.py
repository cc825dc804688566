"""llama.cpp: what is missing is told; its state at another depth; the calls, on a stand-in for it.

The stand-in keeps its state in the documented form and knows nothing else of the library; whether
the real one agrees is for a machine that has it: the logits are compared there before anything is
timed.
"""

import ctypes
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import interlace
from interlace.bench.filled import WARM_TOKENS, Filled, random_latents
from interlace.bench.peers import llama_cpp, require_peers
from interlace.bench.peers.llama_state import deepen
from interlace.config import preset
from interlace.errors import InputError

LAYERS, WIDTH = 2, 6


def state(cells=3, recurrent=b"states", layers=LAYERS, width=WIDTH, kind=1, streams=1):
    """A state as llama.cpp writes it; every number of a row is that of its cell."""
    out = struct.pack("<IiII", 0xAF143CD8, 0, streams, cells)
    for cell in range(cells):
        out += struct.pack("<iIi", cell, 1, 0)
    out += struct.pack("<II", 0, layers)
    for _ in range(layers):
        rows = np.repeat(np.arange(cells, dtype=np.float16), width)
        out += struct.pack("<iQ", kind, 2 * width) + rows.tobytes()
    return out + (struct.pack("<IiI", 1, cells - 1, 0) + recurrent if recurrent else b"")


def numbered(blocks):
    """Rows whose numbers are their position, in blocks."""

    def rows(ordinal):
        start = 0
        for size in blocks:
            positions = torch.arange(start, start + size, dtype=torch.float32)
            yield positions[None, :, None].expand(1, size, WIDTH)
            start += size

    return rows


@pytest.mark.parametrize("recurrent", [b"states and windows", b""])
def test_a_deepened_state_is_that_of_more_cells(recurrent):
    got = deepen(state(3, recurrent), 11, LAYERS, WIDTH, numbered([4, 7]))
    assert got == state(11, recurrent)
    assert deepen(got, 3, LAYERS, WIDTH, numbered([3])) == state(3, recurrent)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (state(layers=3), "2 attention layers, got 3"),
        (state(kind=0), r"rows of 6 float16, got 0, 12"),
        (state(width=7), "rows of 6 float16, got 1, 14"),
        (state(streams=2), "one stream, got several"),
        (state(cells=0), "cells at positions"),
        (state()[:40], "more bytes"),
    ],
)
def test_a_state_of_another_form_is_refused(broken, words):
    with pytest.raises(InputError, match=words):
        deepen(broken, 5, LAYERS, WIDTH, numbered([5]))


def test_too_few_rows_are_refused():
    with pytest.raises(InputError, match="5 rows of layer 0, got 4"):
        deepen(state(), 5, LAYERS, WIDTH, numbered([4]))


def test_what_is_missing_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(llama_cpp, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"needs a native build of llama-cpp-python: pip install"):
        require_peers(["llama.cpp"])
    monkeypatch.setattr(llama_cpp, "find_spec", lambda _: "found")
    with pytest.raises(InputError, match=r"--llama-source must be a folder .* got None"):
        require_peers(["llama.cpp"])
    (tmp_path / llama_cpp.CONVERTER).write_text("")
    require_peers(["llama.cpp"], tmp_path)
    assert "with no KDA layer" in llama_cpp.refuses(preset("mid-mla"))
    assert llama_cpp.refuses(preset("kimi-k3")) is None
    assert llama_cpp.refuses(preset("mid")) is None


CONVERTER = """
import sys
from pathlib import Path
from conversion.kimi_linear import KimiLinearModel
def main():
    _, folder, _, file, _, kind = sys.argv
    model = KimiLinearModel()
    model.set_vocab()
    Path(file).write_text(f"{folder} {kind} {model.made}")
"""
MODEL = """
class KimiLinearModel:
    made = "with tokens"
    def set_vocab(self):
        raise ValueError("no tokenizer here")
    def _set_vocab_none(self):
        self.made = "without"
"""


def test_only_the_tokenizer_step_of_the_converter_is_replaced(tmp_path):
    (tmp_path / "conversion").mkdir()
    (tmp_path / "conversion" / "kimi_linear.py").write_text(MODEL)
    (tmp_path / "convert_hf_to_gguf.py").write_text(CONVERTER)
    llama_cpp.convert(tmp_path, Path("folder"), tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_text() == "folder bf16 without"
    (tmp_path / "convert_hf_to_gguf.py").write_text("def main():\n    raise SystemExit('too new')")
    with pytest.raises(InputError, match="converter must accept the model, it said: too new"):
        llama_cpp.convert(tmp_path, Path("folder"), tmp_path / "other.gguf")


class Library:
    """A stand-in: a context counts its cells, its logits are their number and the last token."""

    __version__ = "0.3.36"
    llama_token = ctypes.c_int32

    def __init__(self, config):
        self.config, self.settings = config, []

    def __getattr__(self, name):
        if name.endswith("_params"):
            return SimpleNamespace
        return lambda *_: 1

    def llama_log_callback(self, call):
        return call

    def llama_init_from_model(self, model, params):
        self.settings.append((params.flash_attn_type, params.n_ctx, params.n_threads))
        return SimpleNamespace(cells=[], room=params.n_ctx, form=params.flash_attn_type)

    def llama_batch_get_one(self, ids, count):
        return list(ids)[:count]

    def llama_decode(self, context, ids):
        context.cells += ids
        return int(len(context.cells) > context.room)

    def llama_get_memory(self, context):
        return context

    def llama_memory_clear(self, context, _):
        context.cells.clear()

    def llama_get_logits_ith(self, context, _):
        return [float(len(context.cells)), float(context.cells[-1])] + [0.0] * 300

    def _state(self, context):
        config = self.config
        return state(
            len(context.cells), b"s", layers=config.num_global_layers, width=config.latent_dim
        )

    def llama_state_seq_get_size(self, context, _):
        return len(self._state(context))

    def llama_state_seq_get_data(self, context, buffer, size, _):
        ctypes.memmove(buffer, self._state(context), size)
        return size

    def llama_state_seq_set_data(self, context, buffer, size, _):
        self.last = bytes(buffer)[:size]
        (count,) = struct.unpack_from("<I", self.last, 12)
        context.cells[:] = [0] * count
        return size


@pytest.fixture
def peer(monkeypatch, tmp_path):
    config = preset("kimi-linear-tiny")
    interlace.save(interlace.build(config, dtype="bfloat16"), tmp_path / "model")
    library = Library(config)
    monkeypatch.setattr(llama_cpp, "import_module", lambda _: library)
    monkeypatch.setattr(llama_cpp, "convert", lambda *_: None)
    loaded = llama_cpp.Loaded(tmp_path / "model", 2, tmp_path)
    yield loaded
    loaded.close()


def test_a_filled_peer_holds_our_latents_in_every_form(peer):
    peer.fill(300, 9)
    assert [len(c.cells) for c in peer.contexts.values()] == [300, 300]
    assert peer.lib.settings == [(1, 512, 2), (0, 512, 2)]
    config = peer.config
    layer = config.full_attn_layers[0] - 1
    rows = torch.cat(list(random_latents(config, layer, 300, torch.bfloat16)), 1)
    assert rows.to(torch.float16).numpy().tobytes() in peer.lib.last
    logits = peer.step(7)
    assert logits[:2].tolist() == [301, 7]
    assert logits.shape == (256,)
    for form, call in peer.steps().items():
        call()
        assert peer.contexts[form].cells[-1] == 5
    # nothing is put in at depth 0, in ours neither
    peer.fill(0, 9)
    assert [c.cells for c in peer.contexts.values()] == [list(WARM_TOKENS)] * 2
    ours = Filled(interlace.build(config), 0, 9)
    assert ours.cache.lengths.tolist() == [len(WARM_TOKENS)]
    assert ours.cache.capacity >= len(WARM_TOKENS) + 9


def test_a_prompt_is_read_from_an_empty_cache_each_time(peer):
    for form, call in peer.prompts(1100).items():
        for _ in range(2):
            call()
        assert len(peer.contexts[form].cells) == 1100

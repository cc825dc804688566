"""A checkpoint becomes a model whole and unchanged, or one sentence."""

import copy
import gc
import json
import sys
import weakref
from pathlib import Path

import pytest
import torch
from checkpoint_files import write_raw
from safetensors.torch import load_file

import interlace
from closeness import assert_close, assert_no_worse
from interlace.checkpoints import reader
from interlace.config import preset
from interlace.config.sizes import weight_bytes
from interlace.errors import CheckpointError, ConfigError, InputError
from interlace.text.ranks import write_tokenizer
from tiny_models import K3, K3_STYLE, edit, ids, lively, model, small

CONV = "model.layers.0.self_attn.k_conv1d.weight"
A_LOG = "model.layers.0.self_attn.A_log"
BIAS = "model.layers.1.block_sparse_moe.gate.e_score_correction_bias"


@pytest.fixture
def folder(tmp_path):
    interlace.save(model(), tmp_path / "model")
    return tmp_path / "model"


def assert_same(found: torch.nn.Module, wanted: torch.nn.Module) -> None:
    a, b = found.state_dict(), wanted.state_dict()
    assert a.keys() == b.keys()
    for name, value in b.items():
        assert a[name].dtype == value.dtype, name
        assert torch.equal(a[name], value), name
    # the weights to the bit; a product may round otherwise where they lie in memory
    exact = copy.deepcopy(wanted).double()
    assert_no_worse(found(ids()), plain=wanted(ids()), exact=exact(ids()))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("style", [{}, K3_STYLE, K3], ids=["kimi_linear", "k3_mixers", "k3"])
def test_what_is_saved_is_what_is_loaded(tmp_path, style, dtype):
    lm = model(dtype, **style)
    if dtype == "bfloat16" and not style:
        # its layout has this bias in bf16
        for layer in lm.model.layers[1:]:
            bias = layer.block_sparse_moe.gate.e_score_correction_bias
            bias.copy_(bias.bfloat16())
    interlace.save(lm, tmp_path / "x")
    found = interlace.load(tmp_path / "x")
    assert_same(found, lm)
    assert found.config == lm.config.replace(dtype=dtype)


def test_shards_are_one_model(tmp_path):
    lm = model()
    saved = interlace.save(lm, tmp_path / "x", max_shard_bytes=20_000)
    assert len(saved.files) > 4
    assert_same(interlace.load(tmp_path / "x"), lm)


def test_decay_and_bias_stay_in_float32(folder):
    lm, narrow = interlace.load(folder), interlace.load(folder, dtype="bfloat16")
    for name, value in narrow.state_dict().items():
        exact = lm.state_dict()[name]
        if name.endswith(("A_log", "dt_bias", "e_score_correction_bias")):
            assert value.dtype == torch.float32
            assert torch.equal(value, exact)
        else:
            assert torch.equal(value, exact.bfloat16()), name


def test_b54_loading_initialises_nothing(folder, monkeypatch):
    def count(tensors):
        tensors[A_LOG] = torch.arange(2.0).view(1, 1, 2, 1)
        tensors[A_LOG.replace("A_log", "dt_bias")] = torch.arange(24.0)

    def forbid(*_, **__):
        raise AssertionError("initialised")

    edit(folder, count)
    monkeypatch.setattr(sys.modules["interlace.models.build"], "init_weights", forbid)
    monkeypatch.setattr("interlace.layers.KimiDeltaAttention.reset_parameters", forbid)
    lm = interlace.load(folder)
    for dtype in (torch.bfloat16, torch.float64, torch.float32):
        lm = lm.to("cpu").to(dtype)
        layer = lm.model.layers[0].self_attn
        assert layer.A_log.tolist() == [0, 1]
        assert layer.dt_bias.tolist() == list(range(24))


# -- memory


def storages(lm: torch.nn.Module) -> dict[int, int]:
    tensors = [*lm.parameters(), *lm.buffers()]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("style", [{}, K3], ids=["kimi_linear", "k3"])
def test_memory_is_the_formula_to_the_byte(tmp_path, style, dtype):
    interlace.save(model(**style), tmp_path / "x")
    lm = interlace.load(tmp_path / "x", dtype=dtype)
    assert sum(storages(lm).values()) == weight_bytes(small(**style), dtype)
    built = interlace.build(small(**style), dtype=dtype)
    assert sum(storages(built).values()) == weight_bytes(small(**style), dtype)


def test_what_k3_stores_in_float32_passes_a_bfloat16_model_unchanged(tmp_path):
    interlace.save(model(**K3), tmp_path / "x", dtype="bfloat16")
    lm = interlace.load(tmp_path / "x")
    interlace.save(lm.bfloat16(), tmp_path / "y")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in "xy")
    wide = {name for name, value in before.items() if value.dtype == torch.float32}
    parts = ("conv1d.weight", "o_norm.weight", "A_log", "dt_bias", "e_score_correction_bias")
    assert wide == {name for name in before if name.endswith(parts)}
    for name, value in before.items():
        assert torch.equal(value, after[name]), name
        # values that bfloat16 cannot hold
        assert name not in wide or bool((value != value.bfloat16()).any())


def test_same_dtype_stays_in_the_file(folder):
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    lm = interlace.load(folder).requires_grad_(False)
    lines = [line for line in maps.read_text().splitlines() if str(folder) in line]
    ranges = [[int(n, 16) for n in line.split()[0].split("-")] for line in lines]
    assert all(any(low <= at < high for low, high in ranges) for at in storages(lm))
    before = (folder / "model.safetensors").read_bytes()
    lm.lm_head.weight.zero_()
    assert (folder / "model.safetensors").read_bytes() == before
    del lm
    gc.collect()
    assert str(folder) not in maps.read_text()


def test_conversion_holds_one_tensor_at_a_time(folder, monkeypatch):
    copy, alive, most = reader._Source._copy, weakref.WeakSet(), []

    def watched(self, header, dtype):
        most.append(len(alive))
        value = copy(self, header, dtype)
        alive.add(value.untyped_storage())
        return value

    monkeypatch.setattr(reader._Source, "_copy", watched)
    interlace.load(folder, dtype="float64")
    assert len(most) > 40
    assert max(most) <= 1


def test_a_file_that_starts_tensors_at_odd_bytes_is_read(folder):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, body = content[8 : 8 + length].decode(), content[8 + length :]
    write_raw(file, header, body, padding=1)
    assert_same(interlace.load(folder), model())


# -- what differs and means the same


def test_b53_both_convolution_shapes_are_one_function(folder):
    wanted = interlace.load(folder)
    edit(folder, lambda t: {n: v.squeeze(1) if "conv1d" in n else v for n, v in t.items()})
    assert_same(interlace.load(folder), wanted)


@pytest.mark.parametrize("turn", [lambda w: w.transpose(1, 2), lambda w: w.squeeze(1).T])
def test_b53_turned_convolutions_are_refused_by_name(folder, turn):
    edit(folder, lambda t: t.update({CONV: turn(t[CONV]).contiguous()}))
    with pytest.raises(CheckpointError, match=CONV):
        interlace.load(folder)


@pytest.mark.parametrize("style", [{}, K3_STYLE, K3], ids=["kimi_linear", "k3_mixers", "k3"])
def test_b61_either_prefix_loads_and_vision_is_skipped(tmp_path, caplog, style):
    lm = model(**style)
    interlace.save(lm, tmp_path / "x")
    prefix = "language_model."

    def turn(tensors):
        turned = {
            n.removeprefix(prefix) if n.startswith(prefix) else prefix + n: v
            for n, v in tensors.items()
        }
        return {**turned, "vision_tower.a": torch.ones(2), "mm_projector.b": torch.ones(1)}

    edit(tmp_path / "x", turn)
    with caplog.at_level("INFO", "interlace"):
        assert_same(interlace.load(tmp_path / "x"), lm)
    assert "skipped 2 vision tensors: " in caplog.text
    edit(tmp_path / "x", lambda t: {**t, "language_model.model.extra": torch.ones(1)})
    with pytest.raises(CheckpointError, match=r"1 too many: language_model\.model\.extra"):
        interlace.load(tmp_path / "x")


def test_misnamed_dense_layer_of_transformers_loads(folder):
    wanted, misnamed = interlace.load(folder), ("layers.0.mlp.", "layers.0.block_sparse_moe.")
    edit(folder, lambda t: {n.replace(*misnamed): v for n, v in t.items()})
    assert_same(interlace.load(folder), wanted)


def test_a_log_behind_the_heads_must_be_zero(tmp_path):
    lm = model(**K3_STYLE)
    interlace.save(lm, tmp_path / "x")
    name = "language_model." + A_LOG
    stored = load_file(tmp_path / "x" / "model.safetensors")[name]
    assert stored.shape == (12,)
    assert torch.equal(stored[:2], lm.model.layers[0].self_attn.A_log)
    assert not stored[2:].any()
    edit(tmp_path / "x", lambda t: t[name].__setitem__(11, 1e-3))
    with pytest.raises(CheckpointError, match=r"A_log must be zero behind its 2 heads"):
        interlace.load(tmp_path / "x")


@pytest.mark.parametrize("shared", [0, 6])
def test_b27_a_model_without_a_shared_key_is_saved_and_loaded(tmp_path, shared):
    lm = model(qk_rope_head_dim=shared)
    interlace.save(lm, tmp_path / "x")
    found = interlace.load(tmp_path / "x").requires_grad_(False)
    assert_same(found, lm)
    assert found.model.layers[2].self_attn.kv_a_proj_with_mqa.weight.shape == (22 + shared, 40)
    cache = found.new_cache(2)
    parts = [found(part, cache=cache) for part in ids().split([7, 1, 3], 1)]
    assert_close(torch.cat(parts, 1), lm(ids()), 1e-5)


@pytest.mark.parametrize("written", [None, ..., 0, 24], ids=["null", "missing", "0", "24"])
def test_b28_every_spelling_of_the_query_path_loads_whole(tmp_path, written):
    lm = model(q_lora_rank=24 if written == 24 else None)
    interlace.save(lm, tmp_path / "x")
    file = tmp_path / "x" / "config.json"
    config = json.loads(file.read_text())
    config.pop("q_lora_rank", None)
    if written is not ...:
        config["q_lora_rank"] = written
    file.write_text(json.dumps(config))
    found = interlace.load(tmp_path / "x")
    assert_same(found, lm)
    found.load_state_dict(lm.state_dict(), strict=True)
    other = {**config, "q_lora_rank": None if written == 24 else 24}
    file.write_text(json.dumps(other))
    with pytest.raises(CheckpointError, match=r"lacks .*self_attn\.q_"):
        interlace.load(tmp_path / "x")


# B58: where the flag stands, and whether the head is there


def tied_config(flag: str) -> dict:
    config = small(**K3_STYLE, tie_word_embeddings=flag != "false").to_dict()
    text = config["text_config"]
    for place, value in (("top", config), ("nested", text)):
        if flag not in (place, "false"):
            del value["tie_word_embeddings"]
    return config


@pytest.mark.parametrize("head", [True, False], ids=["head", "no head"])
@pytest.mark.parametrize("flag", ["top", "nested", "missing", "false"])
def test_b58_tied_or_refused_never_random(tmp_path, flag, head):
    lm = model(**K3_STYLE)
    embedding = lm.model.embed_tokens.weight
    interlace.save(lm, tmp_path / "x")
    (tmp_path / "x" / "config.json").write_text(json.dumps(tied_config(flag)))
    name = "language_model.lm_head.weight"

    def put_head(tensors):
        del tensors[name]
        if head:
            tensors[name] = embedding.clone()

    edit(tmp_path / "x", put_head)
    if flag in ("missing", "false") and not head:
        with pytest.raises(CheckpointError, match=r"lacks 1: language_model\.lm_head\.weight"):
            interlace.load(tmp_path / "x")
        return
    found = interlace.load(tmp_path / "x")
    assert torch.equal(found.lm_head.weight, embedding)
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == (flag in ("top", "nested"))


def test_b58_a_head_that_contradicts_the_flag_is_refused(tmp_path):
    lm = lively(interlace.build(small(tie_word_embeddings=True)))
    interlace.save(lm, tmp_path / "x")
    assert "lm_head.weight" not in load_file(tmp_path / "x" / "model.safetensors")
    assert_same(interlace.load(tmp_path / "x"), lm)
    edit(tmp_path / "x", lambda t: {**t, "lm_head.weight": torch.ones(61, 40)})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight must equal model\.embed_tokens"):
        interlace.load(tmp_path / "x")


# -- what is refused, and that it is refused first


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks 1: model\.norm\.weight"),
        (lambda t: t.update(extra=torch.ones(1)), "1 too many: extra"),
        (lambda t: t.update({"lm_head.weight": torch.ones(40, 61)}), r"\[40, 61\] instead of"),
        (lambda t: t.update({A_LOG: torch.ones(12)}), "A_log"),
        (lambda t: t.update({CONV: t[CONV].char()}), rf"{CONV} is I8"),
        (lambda t: t.update({CONV: t[CONV].to(torch.float8_e4m3fn)}), rf"{CONV} is F8_E4M3"),
        (
            lambda t: t.update({"model.layers.2.self_attn.g_proj.weight": torch.ones(42, 40)}),
            "too many: model.layers.2.self_attn.g_proj.weight",
        ),
    ],
    ids=["missing", "unexpected", "shape", "decay", "integers", "8-bit floats", "b32 gate"],
)
def test_tensors_that_do_not_fit_are_named_before_any_is_read(folder, monkeypatch, change, words):
    edit(folder, change)
    monkeypatch.setattr(reader._Source, "__init__", lambda *_: pytest.fail("a file was opened"))
    with pytest.raises(CheckpointError, match=words):
        interlace.load(folder)


def test_b59_damaged_shards_are_refused_before_any_tensor_is_read(tmp_path, monkeypatch):
    interlace.save(model(), tmp_path / "x", max_shard_bytes=40_000)
    monkeypatch.setattr(reader._Source, "__init__", lambda *_: pytest.fail("a file was opened"))
    shards = sorted((tmp_path / "x").glob("model-*"))
    last = shards[-1].read_bytes()
    shards[-1].write_bytes(last[:-1])
    with pytest.raises(CheckpointError, match=f"{shards[-1].name} is truncated: lm_head.weight"):
        interlace.load(tmp_path / "x")
    shards[-1].unlink()
    with pytest.raises(CheckpointError, match=f"lacks {shards[-1].name}, which should hold"):
        interlace.load(tmp_path / "x")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", [A_LOG, BIAS, "model.embed_tokens.weight"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_value_that_is_not_finite_is_named(folder, name, value, dtype):
    edit(folder, lambda t: t[name].view(-1).__setitem__(-1, value))
    with pytest.raises(CheckpointError, match=f"{name} holds values that are not finite"):
        interlace.load(folder, dtype=dtype)


def test_a_value_too_large_for_the_dtype_is_named(folder):
    edit(folder, lambda t: t["model.norm.weight"].fill_(1e6))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight does not fit torch\.float16"):
        interlace.load(folder, dtype="float16")


def test_what_this_version_cannot_run_is_named(tmp_path):
    config = preset("kimi-k3").replace(quantization={"format": "int8"})
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(ConfigError, match=r"quantised weights must be packed experts .* 'int8'"):
        interlace.load(tmp_path)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere", "nowhere does not exist"),
        ("kimi-linear-tiny", r"interlace\.build\('kimi-linear-tiny'\)"),
        ("model/config.json", "is a file"),
        (".", r"has no config\.json"),
    ],
)
def test_a_path_that_is_no_checkpoint_is_told(folder, monkeypatch, path, words):
    monkeypatch.chdir(folder.parent)
    with pytest.raises(CheckpointError, match=words):
        interlace.load(path)


def test_the_bundled_model_is_found_or_told(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(reader, "BUNDLED_FOLDER", tmp_path / "default")
    with pytest.raises(CheckpointError, match="bundled model is missing"):
        interlace.load("default")
    folder.rename(tmp_path / "default")
    assert_same(interlace.load("default"), model())


def test_half_a_folder_is_told(folder):
    (folder / "model.safetensors").rename(folder / ".model.safetensors.tmp")
    with pytest.raises(CheckpointError, match="has no weights"):
        interlace.load(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match="is a pickle"):
        interlace.load(folder)


def test_another_architecture_is_named(folder):
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="'llama'"):
        interlace.load(folder)


def test_an_unknown_dtype_is_named(folder):
    with pytest.raises(InputError, match="'int8'"):
        interlace.load(folder, dtype="int8")


def test_b70_no_other_library_and_no_code_of_the_checkpoint(folder, monkeypatch):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text("raise SystemExit('code of a checkpoint ran')")
    for name in ("transformers", "safetensors", "huggingface_hub", "evil"):
        monkeypatch.setitem(sys.modules, name, None)
    assert_same(interlace.load(folder), model())


@pytest.mark.parametrize(
    ("vocab", "file", "given"),
    [
        (256, None, True),
        (300, None, True),
        (61, None, False),
        (5000, None, False),
        (256, "tokenizer.model", False),
    ],
)
def test_bytes_are_the_tokenizer_of_a_small_vocabulary(tmp_path, vocab, file, given):
    interlace.save(interlace.build(small(vocab_size=vocab, eos_token_id=60)), tmp_path / "x")
    if file:
        (tmp_path / "x" / file).write_text("{}")
    lm = interlace.load(tmp_path / "x")
    assert (lm.tokenizer is not None) == given
    if given:
        assert lm.tokenizer.encode("ab") == [97, 98]
        assert lm.tokenizer.vocab_size == vocab


def test_tokenizer_of_the_folder_comes_with_the_model_unless_refused(tmp_path):
    folder = tmp_path / "x"
    interlace.save(interlace.build(small(vocab_size=600)), folder)
    marks = write_tokenizer(folder, 600)
    lm = interlace.load(folder)
    assert lm.tokenizer.encode("<|im_end|>", special=True) == [marks["<|im_end|>"]]
    assert interlace.load(folder, tokenizer=False).tokenizer is None
    (folder / "tiktoken.model").write_text("YQ== none\n")
    with pytest.raises(CheckpointError, match="line 1"):
        interlace.load(folder)
    assert interlace.load(folder, tokenizer=False).tokenizer is None

"""Packed experts of a checkpoint: read as they are or expanded, written exactly, never guessed."""

import json

import pytest
import torch
from safetensors.torch import load_file

import interlace
from closeness import assert_close
from interlace.checkpoints.inspect import inspect
from interlace.checkpoints.names import tensor_table
from interlace.config.presets import K3_QUANTIZATION
from interlace.config.sizes import checkpoint_bytes, weight_bytes
from interlace.errors import CheckpointError, ConfigError, InputError
from interlace.ops.mxfp4 import quantize, unpack
from packed_models import EXPERT, packed_config, packed_model, plain_config, plain_model
from tiny_models import edit, ids, model

ON_DISK = f"language_model.{EXPERT}"
PACKED, SCALE = f"{ON_DISK}.w1.weight_packed", f"{ON_DISK}.w1.weight_scale"


@pytest.fixture
def folder(tmp_path):
    interlace.save(packed_model(), tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder, change):
    """Change config.json."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    change(config["text_config"])
    file.write_text(json.dumps(config))


# -- what is held and written


def test_codes_and_scales_come_back_to_the_bit(folder, tmp_path):
    lm = interlace.load(folder)
    wanted = packed_model()
    assert lm.config == packed_config()
    assert {n for n, b in lm.named_buffers()} == {n for n, b in wanted.named_buffers()}
    for name, value in wanted.state_dict().items():
        assert torch.equal(lm.state_dict()[name], value), name
    with torch.inference_mode():  # where one of the two could learn, it would go another way
        assert torch.equal(lm(ids()), wanted(ids()))
    interlace.save(lm, tmp_path / "again")
    first, again = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "again"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_layout_and_sizes_are_those_of_the_formulas(folder):
    summary, config = inspect(folder), packed_config()
    assert summary.match.complete
    assert not summary.match.retyped
    assert summary.num_tensors == len(tensor_table(config))
    assert sum(summary.bytes_per_dtype.values()) == checkpoint_bytes(config)
    # 3 experts in each of 4 layers
    assert summary.bytes_per_dtype["U8"] == 4 * 3 * 3 * 64 * 96 * 17 // 32
    lm = interlace.load(folder, dtype="bfloat16")
    held = sum(t.numel() * t.element_size() for t in [*lm.parameters(), *lm.buffers()])
    assert held == weight_bytes(config, "bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_expanded_is_the_same_model(folder, dtype):
    packed = interlace.load(folder, dtype=dtype, experts="packed")
    plain = interlace.load(folder, dtype=dtype, experts="expanded")
    assert plain.config == plain_config()
    w1 = plain.get_parameter(f"{EXPERT}.w1.weight")
    assert w1.dtype == getattr(torch, dtype)
    assert torch.equal(w1, packed.get_submodule(f"{EXPERT}.w1").expanded(w1.dtype))
    with torch.no_grad():
        if dtype == "bfloat16":
            # the two round at other places, and a router may then choose otherwise
            x = torch.randn(3, 64).bfloat16()
            experts = [lm.get_submodule(EXPERT) for lm in (packed, plain)]
            assert_close(experts[0](x), experts[1](x), 8e-3)
        else:
            assert_close(packed(ids()), plain(ids()), 1e-6)


def test_a_plain_model_is_packed_on_its_way_to_the_file(tmp_path):
    lm = plain_model()
    interlace.save(lm, tmp_path / "packed", experts="mxfp4")
    assert lm.config == plain_config()
    read = interlace.load(tmp_path / "packed")
    assert read.config == packed_config()
    codes, scale = quantize(lm.get_parameter(f"{EXPERT}.w2.weight"))
    w2 = read.get_submodule(f"{EXPERT}.w2")
    assert torch.equal(w2.weight_packed, codes)
    assert torch.equal(w2.weight_scale, scale)


def test_a_packed_model_is_written_plain_on_request(folder, tmp_path):
    interlace.save(interlace.load(folder), tmp_path / "plain", experts="plain", dtype="bfloat16")
    plain = interlace.load(tmp_path / "plain")
    expanded = interlace.load(folder, dtype="bfloat16", experts="expanded")
    assert plain.config == plain_config(dtype="bfloat16")
    for name, value in expanded.state_dict().items():
        assert torch.equal(plain.state_dict()[name], value), name


@pytest.mark.parametrize("ignore", [[], ["re:.*"], ["re:.*experts.*"]])
def test_the_list_of_ignored_modules_is_not_asked(folder, ignore):
    wanted = interlace.load(folder)(ids())
    rewrite(folder, lambda text: text["quantization_config"].update(ignore=ignore))
    assert torch.equal(interlace.load(folder)(ids()), wanted)


# -- collected faults


def test_b55_each_expert_has_its_own_scales_and_expert_0_is_one_too(folder):
    def scales(tensors):
        for expert in range(3):
            stem = f"language_model.model.layers.2.block_sparse_moe.experts.{expert}.w3"
            tensors[f"{stem}.weight_packed"].copy_(torch.arange(64 // 2) + 17)
            tensors[f"{stem}.weight_scale"].fill_(126 + expert)

    edit(folder, scales)
    packed = interlace.load(folder).model.layers[2].block_sparse_moe.experts
    plain = interlace.load(folder, experts="expanded").model.layers[2].block_sparse_moe.experts
    for experts in (
        [packed[e].w3.expanded() for e in range(3)],
        [plain[e].w3.weight for e in range(3)],
    ):
        norms = [float(w.detach().float().norm()) for w in experts]
        assert norms[0] > 0
        assert (norms[1] / norms[0], norms[2] / norms[0]) == (2, 4)


def test_b56_scale_bytes_are_powers_of_two_and_255_is_refused(folder):
    packed = torch.full((4, 16), 0x22, dtype=torch.uint8)  # ones
    scale = torch.tensor([[0], [1], [127], [252]], dtype=torch.uint8)
    powers = [2.0**-127, 2.0**-126, 1.0, 2.0**125]
    assert unpack(packed, scale, torch.float32)[:, 5].tolist() == powers
    for value in (253, 255):
        edit(folder, lambda t, value=value: t[SCALE].view(-1).__setitem__(3, value))
        for experts in ("packed", "expanded"):
            with pytest.raises(CheckpointError, match=f"w1.weight_scale must .* 252, got {value}"):
                interlace.load(folder, experts=experts)


def test_b56_a_scale_that_is_stored_as_a_number_is_refused(folder):
    edit(folder, lambda t: t.update({SCALE: t[SCALE].float()}))
    with pytest.raises(CheckpointError, match=r"w1\.weight_scale in .* must be U8, got F32"):
        interlace.load(folder)


# -- what does not belong together


def test_a_plain_tensor_in_bytes_is_refused(folder):
    name = "language_model.model.norm.weight"
    edit(folder, lambda t: t.update({name: t[name].to(torch.uint8)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight in .* must be F32, got U8"):
        interlace.load(folder)


@pytest.mark.parametrize("lost", [PACKED, SCALE])
def test_half_of_a_packed_matrix_is_refused(folder, lost):
    edit(folder, lambda t: {n: v for n, v in t.items() if n != lost})
    words = f"lacks one of the two tensors of 1 packed matrices: {lost}"
    with pytest.raises(CheckpointError, match=words):
        interlace.load(folder)


def test_groups_of_16_are_refused(folder):
    def sixteen(text):
        text["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 16

    rewrite(folder, sixteen)
    with pytest.raises(ConfigError, match="group_size of packed experts must be 32, got 16"):
        interlace.load(folder)


def test_scales_of_groups_of_16_are_misshaped(folder):
    edit(folder, lambda t: t.update({SCALE: t[SCALE].repeat(1, 2)}))
    with pytest.raises(CheckpointError, match=r"w1\.weight_scale \[96, 4\] instead of \[96, 2\]"):
        interlace.load(folder)


def test_packed_tensors_under_a_plain_config_are_named(folder):
    rewrite(folder, lambda text: text.pop("quantization_config"))
    with pytest.raises(CheckpointError, match=r"holds packed weights .*experts\.0\.w1\.weight_pac"):
        interlace.load(folder)


def test_plain_tensors_under_a_packed_config_are_named(tmp_path):
    interlace.save(plain_model(), tmp_path / "x")
    rewrite(tmp_path / "x", lambda text: text.update(quantization_config=K3_QUANTIZATION))
    with pytest.raises(CheckpointError, match=r"holds plain weights .*, but its config packs them"):
        interlace.load(tmp_path / "x")


def test_a_layer_without_its_experts_is_named(folder):
    def rob(tensors):
        return {n: t for n, t in tensors.items() if ".layers.3.block_sparse_moe.experts." not in n}

    edit(folder, rob)
    with pytest.raises(
        CheckpointError, match=r"lacks 18: .*layers\.3.*experts\.0\.w1\.weight_pack"
    ):
        interlace.load(folder)


# -- arguments


def test_arguments_that_ask_for_what_is_not_there_are_named(tmp_path):
    interlace.save(model(), tmp_path / "plain")
    with pytest.raises(InputError, match="experts='packed' needs a checkpoint with packed"):
        interlace.load(tmp_path / "plain", experts="packed")
    interlace.load(tmp_path / "plain", experts="expanded")
    with pytest.raises(InputError, match="experts must be one of packed, expanded, disk or None"):
        interlace.load(tmp_path / "plain", experts="int4")
    with pytest.raises(InputError, match="experts must be 'mxfp4', 'plain' or None, got 'fp8'"):
        interlace.save(model(), tmp_path / "x", experts="fp8")
    with pytest.raises(ConfigError, match="multiple of 32 long, got 40 and 16"):
        interlace.save(model(), tmp_path / "x", experts="mxfp4")
    dense = dict.fromkeys(("num_experts", "num_experts_per_token", "moe_intermediate_size"))
    lm = model(**dense, num_shared_experts=0, first_k_dense_replace=0)
    with pytest.raises(InputError, match="this model has none"):
        interlace.save(lm, tmp_path / "x", experts="mxfp4")
    assert not (tmp_path / "x").exists()


def test_what_is_not_finite_is_not_packed(tmp_path):
    lm = plain_model()
    lm.get_parameter(f"{EXPERT}.w2.weight").data[5, 7] = float("nan")
    with pytest.raises(CheckpointError, match=r"w2\.weight_packed must be finite to be packed"):
        interlace.save(lm, tmp_path / "x", experts="mxfp4")
    assert not list(tmp_path.iterdir())

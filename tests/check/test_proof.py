"""What the check says of sound models, in every precision and form, and of odd input."""

import ast
import inspect
import sys

import pytest
import torch

from interlace.check import check_model, draw_rows, enliven
from interlace.check.needs import check_bytes
from interlace.check.reference import Reference
from interlace.config import preset, sizes
from interlace.errors import CacheError, InputError
from tiny_models import K3_STYLE, model

GROUPS = {"num_experts": 6, "num_expert_group": 3, "topk_group": 2}
TIED = {"tie_word_embeddings": True, "qk_rope_head_dim": 0}
LATENT = {
    "routed_expert_hidden_size": 20,
    "latent_moe_use_norm": True,
    "hidden_act": "situ",
    "activation_situ_beta": 4.0,
    "activation_situ_linear_beta": 25.0,
}
BLOCKS = {**K3_STYLE, **LATENT, "attn_res_block_size": 2}
FULL = {"attn_res_block_size": 0}


@pytest.mark.parametrize(
    "style", [BLOCKS, FULL, GROUPS, TIED], ids=["k3", "full residuals", "groups", "tied"]
)
def test_float64_agrees_to_the_bound_of_float64(style):
    report = check_model(model("float64", **style), [[5, 6, 7, 8, 9, 10, 11, 12, 13], [3, 2]])
    assert report.ok, report.first_bad.describe()
    assert max(f.error for f in report.findings) < 1e-12
    assert {f.bound for f in report.findings} == {1e-10, 0.0}


def test_rebuilt_attention_and_chunks_are_reached():
    report = check_model(model(), draw_rows(61, 50, seed=2), saved=False)
    assert report.ok, report.first_bad.describe()
    assert report.lengths == [50, 26, 5]
    ways = {(f.kind, f.way) for f in report.findings}
    assert {("Gated MLA", "rebuilt"), ("Gated MLA", "absorbed"), ("KDA", "chunked")} <= ways
    assert {("KDA", "state"), ("Gated MLA", "latent"), ("logits", "padded, cached")} <= ways
    assert [f.layer for f in report.findings if f.part == "stream"] == [0, 1, 2]


def test_a_bfloat16_model_is_bounded_as_one_and_ties_are_left_out():
    report = check_model(model("bfloat16", num_experts_per_token=4), draw_rows(61, 12), saved=False)
    assert report.ok, report.first_bad.describe()
    assert min(f.bound for f in report.findings) >= 4e-3
    # five experts in bf16: somewhere rounding could choose another
    assert report.undecided > 0
    assert {f.judged for f in report.findings if f.part == "logits"} == {0}
    assert all(f.judged for f in report.findings if f.layer is not None and f.part != "stream")


def test_a_way_that_raises_is_red_and_says_what(monkeypatch):
    def fail(*args, **kwargs):
        raise CacheError("no room")

    monkeypatch.setattr("interlace.layers.mla.latent_attention", fail)
    report = check_model(model(), draw_rows(61, 6), saved=False)
    bad = report.first_bad
    assert (bad.layer, bad.way, bad.note) == (2, "absorbed", "CacheError: no room")
    assert bad.to_dict()["error"] is None
    assert "no room" in bad.describe()


def test_a_call_that_raises_is_told_by_its_layer(monkeypatch):
    lm = model()
    monkeypatch.setattr(lm.model.layers[1], "forward", None)
    report = check_model(lm, draw_rows(61, 6), saved=False)
    assert (report.first_bad.layer, report.first_bad.part) == (1, "stream")
    assert report.first_bad.error == float("inf")


def test_weights_that_do_not_come_back_are_red(monkeypatch):
    lm = model()
    monkeypatch.setattr("interlace.check.whole.load", lambda path, dtype: model(rms_norm_eps=1e-4))
    assert check_model(lm, [[1, 2, 3]]).first_bad.way == "saved = loaded"
    other = model()
    other.model.layers[0].self_attn.A_log[1] += 1e-6
    monkeypatch.setattr("interlace.check.whole.load", lambda path, dtype: other)
    bad = check_model(lm, [[1, 2, 3]]).first_bad
    assert "self_attn.A_log must come back to the bit" in bad.describe()


def test_a_short_row_is_enough():
    assert check_model(model(), [[4]], saved=False).ok


@pytest.mark.parametrize("rows", [[], [[1], []], [[61]], [[-1]]])
def test_ids_that_are_none_are_refused(rows):
    with pytest.raises(InputError, match="ids"):
        check_model(model(), rows)


def test_the_reference_shares_no_code_with_the_layers():
    tree = ast.parse(inspect.getsource(sys.modules[Reference.__module__]))
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not [name for name in imported if name.startswith(("interlace.layers", "interlace.mod"))]
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    operators = {a for a in names if a.islower() and "interlace" not in a} - {"dataclass"}
    assert all(name.endswith("_reference") for name in operators), operators


def test_enlivened_weights_are_finite_and_all_move():
    lm = model("bfloat16")
    before = {name: value.clone() for name, value in lm.state_dict().items()}
    enliven(lm, seed=4)
    for name, value in lm.state_dict().items():
        assert torch.isfinite(value).all()
        assert not torch.equal(value, before[name]), name


def test_needs_hold_the_weights_once_or_twice_and_no_float64_of_them():
    config = preset("kl2")
    once = check_bytes(config, [131, 66, 5], "bfloat16", saved=False)
    weights = sizes.weight_bytes(config, "bfloat16")
    assert once["weights"] == weights
    assert sum(once.values()) < weights + 1.2e9
    twice = check_bytes(config, [131, 66, 5], "bfloat16")
    assert sum(twice.values()) == sum(once.values()) + weights

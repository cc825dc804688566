"""Who is named as a reader is who read it: the words of llama.cpp that `make peers` wrote down."""

import json
from pathlib import Path

import pytest

from interlace.bench.peers import llama_cpp
from interlace.bench.peers.compared import CASES, TRIED
from interlace.checkpoints.readers import llama_cpp_lacks, readers
from interlace.config import preset
from packed_models import packed_config

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "peers.json"


def names(config):
    return [reader.split()[0] for reader in readers(config)]


@pytest.mark.parametrize("name", CASES)
def test_what_is_compared_with_llama_cpp_is_said_to_be_read_by_it(name):
    assert json.loads(RESULTS.read_text())["models"][name]["passed"]
    transformers = ["transformers"] * (CASES[name].published_class == "kimi_linear")
    assert names(CASES[name]) == [*transformers, "llama.cpp"]
    assert llama_cpp.refuses(CASES[name]) is None


@pytest.mark.parametrize("name", TRIED)
def test_what_was_tried_is_answered_as_llama_cpp_did(name):
    said = json.loads(RESULTS.read_text())["tried"][name]
    ran = said.startswith("runs, ") and "something else" not in said
    assert ("llama.cpp" in names(TRIED[name])) == ran, said
    assert (llama_cpp.refuses(TRIED[name]) is None) == ran


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (preset("kimi-linear-48b"), None),
        (preset("kimi-k3"), None),
        (preset("mid"), None),
        (packed_config(kda_num_heads=3), None),
        (packed_config(), "heads in Gated MLA"),
        (preset("mid-mla"), "no KDA layer"),
        (CASES["k3-a"].replace(tie_word_embeddings=True), "tied embeddings"),
        (CASES["k3-a"].replace(moe_layer_freq=2), "moe_layer_freq 2"),
        (CASES["linear-a"].replace(model_type="kimi_k3"), "Attention Residuals"),
    ],
    ids=lambda value: None if value is None or isinstance(value, str) else value.published_class,
)
def test_what_is_lacking_is_named(config, reason):
    said = llama_cpp_lacks(config)
    assert said == reason or reason in said
    assert ("llama.cpp" in names(config)) == (reason is None)


def test_transformers_reads_kimi_linear_alone():
    config = preset("kimi-linear-tiny")
    assert "transformers" in names(config)
    for change in ({"tie_word_embeddings": True}, {"moe_layer_freq": 2}, {"num_shared_experts": 0}):
        assert "transformers" not in names(config.replace(**change))
    assert names(config.replace(q_lora_rank=18)) == ["transformers"]
    assert "transformers" not in names(preset("kimi-k3-tiny"))

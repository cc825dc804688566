"""Models from presets: cheap to make, the same for the same seed, tied when the config says so."""

import subprocess
import sys

import pytest
import torch

import interlace
from interlace.config import preset
from interlace.errors import ConfigError, InputError

CHEAP = """
import sys
for name in ("transformers", "huggingface_hub", "tokenizers", "tiktoken"):
    sys.modules[name] = None  # importing it fails
import interlace
lm = interlace.build("kimi-linear-tiny", dtype="bfloat16")
interlace.save(lm, sys.argv[1])
interlace.load(sys.argv[1])
heavy = {"sympy", "torch._dynamo", "torch._inductor"} & set(sys.modules)
assert not heavy, heavy
"""


def test_b70_building_saving_and_loading_import_no_compiler_and_no_other_library(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CHEAP, str(tmp_path / "model")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_tied_embeddings_share_one_storage():
    lm = interlace.build(preset("kimi-linear-tiny").replace(tie_word_embeddings=True))
    assert lm.lm_head.weight is lm.model.embed_tokens.weight


def test_every_value_is_written():
    # unwritten memory is NaN in the tests
    for name, value in interlace.build("kimi-linear-tiny").state_dict().items():
        assert torch.isfinite(value).all(), name


def test_unknown_names_are_refused():
    with pytest.raises(ConfigError, match=r"kimi-linear-tiny.*interlace\.load for a checkpoint"):
        interlace.build("gpt")
    with pytest.raises(InputError, match="bfloat16"):
        interlace.build("kimi-linear-tiny", dtype="int8")

"""Models by name: sizes of the benchmark models and of the bundled one."""

import pytest

from interlace.config import PRESETS, HybridConfig, preset
from interlace.config.sizes import stored_parameters
from interlace.errors import ConfigError


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_config_that_can_be_saved(name):
    config = preset(name)
    assert HybridConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("mid", 129_907_552),
        ("kl2", 279_799_008),
        ("kl-moe", 2_007_393_760),
        ("default", 3_608_832),
        ("kimi-linear-tiny", 300_916),
    ],
)
def test_parameters_of_the_small_models(name, parameters):
    assert stored_parameters(preset(name)) == parameters


@pytest.mark.parametrize("name", ["mid", "kl2", "kl-moe", "kimi-linear-tiny"])
def test_all_mla_form_differs_in_its_mixers_alone(name):
    hybrid, only = preset(name), preset(f"{name}-mla")
    assert only.num_kda_layers == 0
    assert only.full_attn_layers == tuple(range(1, hybrid.num_hidden_layers + 1))
    back = {
        key: getattr(hybrid, key)
        for key in ("kda_layers", "full_attn_layers", "kda_num_heads", "kda_head_dim")
    }
    assert only.replace(**back) == hybrid


def test_default_is_small_and_knows_documents():
    config = preset("default")
    assert config.full_attn_layers == (4, 8, 9)
    assert config.bos_token_id == 256
    assert config.eos_token_id == 257
    assert config.vocab_size == 258
    assert stored_parameters(config) * 2 < 8_000_000


def test_unknown_name_lists_the_names():
    with pytest.raises(ConfigError, match=r"no preset is named 'gpt2'; use one of kimi-k3, .*mid"):
        preset("gpt2")

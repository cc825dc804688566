"""The bound on what a call needs: how it scales, and what it does not depend on."""

import pytest

from interlace.config import preset
from interlace.config.activations import (
    KEY_BLOCK,
    activation_bytes,
    activation_phases,
    decode_activation_bytes,
    prefill_activation_bytes,
)
from interlace.errors import ConfigError

KL2, MOE = preset("kl2"), preset("kl-moe")


def test_decode_does_not_grow_with_the_context():
    shallow, deep = (decode_activation_bytes(KL2, 1, memory) for memory in (KEY_BLOCK, 2**20))
    assert shallow == deep
    # far below one expanded copy of the keys of 65,536 tokens
    assert deep < 65_536 * 32 * 192 * 2 / 10


def test_prefill_does_not_grow_with_the_context_behind_it():
    near = prefill_activation_bytes(KL2, 1, 512, 2048)
    assert near == prefill_activation_bytes(KL2, 1, 512, 2**20)


def test_bound_grows_with_batch_tokens_and_precision():
    base = activation_bytes(KL2, 2, 64, 2048)
    assert base < activation_bytes(KL2, 3, 64, 2048)
    assert base < activation_bytes(KL2, 2, 128, 2048)
    assert base < activation_bytes(KL2, 2, 64, 2048, "float32")
    assert activation_bytes(KL2, 2, 64, 2048, "float32") < activation_bytes(
        KL2, 2, 64, 2048, "float64"
    )
    assert decode_activation_bytes(KL2, 5, 99) == activation_bytes(KL2, 5, 1, 99)


def test_logits_of_every_token_are_counted_only_when_wanted():
    wide = KL2.replace(vocab_size=163_840)
    last = prefill_activation_bytes(wide, 1, 512, 512)
    every = prefill_activation_bytes(wide, 1, 512, 512, last_only=False)
    assert every > 512 * 163_840 * 4 > last


def test_phases_are_those_the_model_has():
    def names(config):
        return set(activation_phases(config, 1, 8, 8))

    assert names(KL2) == {"residual", "head", "kda", "mla", "dense"}
    assert names(MOE) == {"residual", "head", "kda", "mla", "experts"}
    assert names(preset("kl2-mla")) == {"residual", "head", "mla", "dense"}
    assert "latent" in activation_phases(preset("kimi-k3"), 1, 8, 8)["experts"]
    for config in (KL2, MOE, preset("kimi-k3")):
        for terms in activation_phases(config, 1, 70, 70).values():
            assert all(size >= 0 for size in terms.values())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((0, 1, 1), "batch must be an integer of at least 1"),
        ((1, 0, 1), "tokens must be an integer of at least 1"),
        ((1, 5, 4), "memory must be an integer of at least 5, got 4"),
        ((1, 1, 1, "foo"), "dtype must be one of"),
    ],
)
def test_counts_out_of_range_are_refused(arguments, match):
    with pytest.raises(ConfigError, match=match):
        activation_bytes(KL2, *arguments)

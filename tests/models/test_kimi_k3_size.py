"""The size of K3 counted three ways: by formula, by the module tree, by the table of tensors."""

import gc
from functools import cache
from math import prod

import pytest
import torch

from interlace.checkpoints.headers import DTYPE_BYTES
from interlace.checkpoints.names import tensor_table
from interlace.config import preset
from interlace.config.sizes import checkpoint_bytes, live_parameters, stored_parameters
from interlace.layers import moe
from interlace.models import HybridLM

STORED, LIVE, TENSORS = 2_779_484_478_208, 2_779_484_476_000, 497_052


@pytest.fixture(autouse=True)
def without_looking_for_cycles():
    """Among half a million small objects that search takes as long as the rest of the test."""
    collects = gc.isenabled()
    gc.disable()
    yield
    if collects:
        gc.enable()


def _tree(config, monkeypatch):
    """The model on the meta device, where experts made from the same arguments are one module.

    Every layer is built with its own index, and under the names of its own experts; what is saved
    is building 82,432 equal ones, which know neither their layer nor their number.
    """
    monkeypatch.setattr(moe, "Expert", cache(moe.Expert))
    with torch.device("meta"):
        return HybridLM(config)


def test_all_three_agree_to_the_last_parameter(monkeypatch):
    packed = preset("kimi-k3")
    config = packed.replace(quantization=None)
    assert (stored_parameters(config), live_parameters(config)) == (STORED, LIVE)
    assert (stored_parameters(packed), live_parameters(packed)) == (STORED, LIVE)
    written = tensor_table(packed).items()
    assert len(written) == TENSORS
    nbytes = codes = plain = 0
    for name, spec in written:
        numbers = prod(spec.shape)
        nbytes += numbers * DTYPE_BYTES[spec.dtype]
        # two codes a byte; a scale is no parameter
        codes += numbers * 2 if name.endswith("_packed") else 0
        plain += numbers if spec.dtype != "U8" else 0
    assert nbytes == checkpoint_bytes(packed)
    assert codes + plain == STORED
    table = tensor_table(config)
    assert sum(prod(spec.shape) for spec in table.values()) == STORED
    # plain: the packed tree has as many matrices, of two tensors each
    lm = _tree(config, monkeypatch)
    tensors = lm.state_dict()
    # nothing that lives in the tree is left out of its state dict
    assert tensors.keys() >= {name for name, _ in [*lm.named_parameters(), *lm.named_buffers()]}
    assert sum(value.numel() for value in tensors.values()) == LIVE
    assert tensors.keys() == {spec.memory for spec in table.values()}
    for spec in table.values():
        if not spec.memory.endswith(".A_log"):
            assert tensors[spec.memory].shape == spec.shape, spec.memory

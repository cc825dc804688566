"""The size of K3 counted three ways: by formula, by the module tree, by the table of tensors."""

import gc
from math import prod

import torch

from interlace.checkpoints.headers import DTYPE_BYTES
from interlace.checkpoints.names import tensor_table
from interlace.config import preset
from interlace.config.sizes import checkpoint_bytes, live_parameters, stored_parameters
from interlace.models import HybridLM

STORED, LIVE, TENSORS = 2_779_484_478_208, 2_779_484_476_000, 497_052


def _nbytes(spec):
    return prod(spec.shape) * DTYPE_BYTES[spec.dtype]


def test_all_three_agree_to_the_last_parameter():
    packed = preset("kimi-k3")
    assert checkpoint_bytes(packed) == sum(_nbytes(spec) for spec in tensor_table(packed).values())
    config = packed.replace(quantization=None)
    assert (stored_parameters(config), live_parameters(config)) == (STORED, LIVE)
    assert (stored_parameters(packed), live_parameters(packed)) == (STORED, LIVE)
    written = tensor_table(packed)
    assert len(written) == TENSORS
    # two codes a byte; a scale is no parameter
    codes = sum(prod(spec.shape) * 2 for n, spec in written.items() if n.endswith("_packed"))
    plain = sum(prod(spec.shape) for spec in written.values() if spec.dtype != "U8")
    assert codes + plain == STORED
    table = tensor_table(config)
    assert sum(prod(spec.shape) for spec in table.values()) == STORED
    # 330,000 modules: looking for cycles among them again and again would triple the time
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.device("meta"):
            # plain: the packed tree has as many matrices, of two tensors each
            lm = HybridLM(config)
        tensors = {**dict(lm.named_parameters()), **dict(lm.named_buffers())}
        assert sum(value.numel() for value in tensors.values()) == LIVE
        assert lm.state_dict().keys() == {spec.memory for spec in table.values()}
        for spec in table.values():
            if not spec.memory.endswith(".A_log"):
                assert tensors[spec.memory].shape == spec.shape, spec.memory
    finally:
        if collects:
            gc.enable()

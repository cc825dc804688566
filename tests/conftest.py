"""Seeds, NaN in unwritten memory, no network."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed_and_poison():
    torch.manual_seed(42)
    # unwritten memory is NaN, so that reading it shows
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)

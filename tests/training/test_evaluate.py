import math

import pytest
import torch
from small import TINY

from interlace.models import build
from interlace.training.evaluate import EvalSubset, bits_per_byte
from interlace.training.recipe import ModelRecipe
from interlace.training.trainer import model_config

DOCUMENTS = [b"alpha beta", b"x", b"def f():\n    return 12345\n"]


@pytest.fixture
def lm():
    return build(model_config(ModelRecipe(config=TINY)), seed=1).eval()


def test_a_uniform_model_costs_the_logarithm_of_its_ids(lm):
    lm.lm_head.weight.data.zero_()
    expected = math.log2(lm.config.vocab_size)
    assert bits_per_byte(lm, DOCUMENTS) == pytest.approx(expected, abs=1e-5)
    assert EvalSubset(DOCUMENTS, 10_000, 100).bits_per_byte(lm) == pytest.approx(expected, abs=1e-5)


def test_cached_chunks_padded_rows_and_single_files_agree(lm):
    lm.lm_head.weight.data.mul_(40)
    total = sum(len(text) * bits_per_byte(lm, [text]) for text in DOCUMENTS)
    whole = total / sum(map(len, DOCUMENTS))
    assert bits_per_byte(lm, DOCUMENTS, chunk=7) == pytest.approx(whole, abs=1e-4)
    assert EvalSubset(DOCUMENTS, 10_000, 100).bits_per_byte(lm, rows=2) == pytest.approx(
        whole, abs=1e-4
    )
    with torch.no_grad():
        logits = lm(torch.tensor([[256, *DOCUMENTS[1]]]))[:, :-1]
    by_hand = -float(logits.log_softmax(-1)[0, 0, DOCUMENTS[1][0]]) / math.log(2)
    assert bits_per_byte(lm, [DOCUMENTS[1]]) == pytest.approx(by_hand, abs=1e-5)


def test_the_subset_is_shared_out_evenly():
    subset = EvalSubset([b"a" * 50, b"b" * 3, b"c" * 90], total_bytes=60, length=100)
    assert [len(row) - 1 for row in subset.rows] == [20, 3, 20]
    assert subset.bytes == 43
    assert EvalSubset([b"a" * 50], total_bytes=60, length=7).bytes == 7

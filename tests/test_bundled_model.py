"""The bundled model still scores what was recorded when it was made."""

import json
from pathlib import Path

import pytest

import interlace
from interlace.checkpoints.inspect import BUNDLED_FOLDER
from interlace.errors import InputError
from interlace.training.corpus import read_manifest
from interlace.training.evaluate import bits_per_byte

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "benchmarks/results/evaluate_default.json"
OPENING = 16384

pytestmark = pytest.mark.skipif(
    not BUNDLED_FOLDER.is_dir(), reason="the bundled model has not been made yet"
)


def test_sixteen_kilobytes_score_what_was_recorded():
    try:
        corpus = read_manifest(ROOT / "recipes/default/manifest.json")
    except InputError as error:
        pytest.skip(f"the held-out text is that of another Python version: {error}")
    text = max(corpus.held_out, key=len)[:OPENING]
    recorded = json.loads(RECORDED.read_text())["opening_bits_per_byte"]
    assert bits_per_byte(interlace.load("default"), [text]) == pytest.approx(recorded, abs=2e-3)


def test_the_model_fits_its_budget():
    weights = sum(file.stat().st_size for file in BUNDLED_FOLDER.glob("*.safetensors"))
    assert weights <= 8_000_000

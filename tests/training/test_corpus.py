import json
import random

import pytest

from interlace.errors import InputError
from interlace.training import corpus


def words(seed, size):
    return random.Random(seed).randbytes(size)


@pytest.fixture
def library(tmp_path):
    root = tmp_path / "lib"
    for i in range(24):
        path = root / f"m{i:02}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(words(i, 400 + 10 * i))
    shared = words(99, 3000)
    (root / "pkg" / "test").mkdir(parents=True)
    (root / "pkg" / "twin_a.py").write_bytes(shared)
    (root / "pkg" / "twin_b.py").write_bytes(words(98, 1000) + shared[:1500])
    skipped = (
        "pkg/test/t.py",
        "encodings/e.py",
        "site-packages/s.py",
        "config-3.11-x/c.py",
        "_sysconfigdata_l.py",
    )
    for name in (*skipped, "data.txt", "empty.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"" if name == "empty.py" else b"x = 1\n")
    return root


@pytest.fixture
def manifest(library, tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(corpus.make_manifest(library, share=0.2, count=(2, 9))))
    return path


def test_which_files_belong(library):
    names = corpus.stdlib_files(library)
    assert len(names) == 26
    assert "pkg/twin_a.py" in names
    assert not any("test" in name or "encodings" in name or "sysconfig" in name for name in names)


def test_manifest_round_trip(library, manifest):
    facts = json.loads(manifest.read_text())
    text = corpus.read_manifest(manifest, library)
    assert sum(map(len, text.train)) == facts["bytes"]["train"]
    assert set(text.train_paths).isdisjoint(text.held_out_paths)
    assert len(text.train_paths) + len(text.held_out_paths) == 26
    assert text.held_out == tuple((library / name).read_bytes() for name in text.held_out_paths)
    assert facts == corpus.make_manifest(library, share=0.2, count=(2, 9))


def test_related_files_stay_together(library):
    a, b = words(1, 2000), words(2, 2000)
    half = a[:1032] + words(3, 900)
    less = a[:700] + words(4, 1300)
    assert corpus.related_groups([a, b, half, less]) == [[0, 2], [1], [3]]
    # a short text inside a long one is related, and so is what hangs together over a third
    assert corpus.related_groups([b[100:400], b, a, b[:1500] + a[:1500]]) == [[0, 1, 2, 3]]
    assert corpus.related_groups([b"tiny", b"tiny", b"other"]) == [[0, 1], [2]]


def test_twins_share_a_side_for_every_seed(library):
    names = corpus.stdlib_files(library)
    texts = [(library / name).read_bytes() for name in names]
    groups = corpus.related_groups(texts)
    twins = {names.index("pkg/twin_a.py"), names.index("pkg/twin_b.py")}
    for seed in range(20):
        held = corpus._draw(groups, [len(t) for t in texts], seed, 6000.0)
        assert len(held & twins) in (0, 2)


def test_changed_and_missing_files_are_named(library, manifest):
    (library / "m03.py").write_bytes(words(3, 430)[:-1] + b"!")
    (library / "m05.py").unlink()
    with pytest.raises(
        InputError, match=r"2 of 26 differ \(m03\.py, m05\.py\).*use that Python version"
    ):
        corpus.read_manifest(manifest, library)


def test_a_moved_file_is_noticed(library, manifest):
    facts = json.loads(manifest.read_text())
    entry = next(f for f in facts["files"] if f["split"] == "held_out")
    entry["split"] = "train"
    manifest.write_text(json.dumps(facts))
    with pytest.raises(InputError, match="manifest was changed"):
        corpus.read_manifest(manifest, library)


def test_no_manifest(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        corpus.read_manifest(tmp_path / "none.json")
    (tmp_path / "m.json").write_text('{"files": 3}')
    with pytest.raises(InputError, match="must be a corpus manifest"):
        corpus.read_manifest(tmp_path / "m.json")


def test_too_few_files(library):
    with pytest.raises(InputError, match="too small"):
        corpus.make_manifest(library, count=(30, 40))

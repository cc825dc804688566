"""Models of the Hub: only needed files, one commit, the cache without a network, one sentence."""

import json
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

import interlace
from interlace.checkpoints import hub
from interlace.cli import main
from interlace.errors import CheckpointError, ConfigError, InputError, MissingExtra
from interlace.text.ranks import write_tokenizer
from tiny_models import model

COMMIT = "c0ffee" + "0" * 34
OTHER = "beef" + "0" * 36


def published(folder: Path, **changes) -> Path:
    """A repository as somebody may have published it: weights in two forms, code, other files."""
    interlace.save(model(vocab_size=600, **changes), folder, max_shard_bytes=20_000)
    write_tokenizer(folder, 600)
    for name in ("modeling_x.py", "pytorch_model.bin", "consolidated.safetensors", "README.md"):
        (folder / name).write_text("raise SystemExit('must not be fetched')")
    (folder / "extra").mkdir()
    (folder / "extra" / "config.json").write_text("{}")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the Hub's package, and its layout."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def cached(cache: Path, source: Path, commit: str = COMMIT, revision: str = "main") -> Path:
    """Put a folder into the cache as the package does."""
    root = cache / "models--acme--tiny-kda"
    (root / "refs").mkdir(parents=True, exist_ok=True)
    (root / "refs" / revision).write_text(commit)
    shutil.copytree(source, root / "snapshots" / commit)
    return root / "snapshots" / commit


class FakeHub:
    """`snapshot_download` of a Hub that holds one repository; copies what the patterns allow."""

    def __init__(self, source: Path, cache: Path) -> None:
        self.source, self.folder = source, cache / "snapshots" / COMMIT
        self.calls: list[tuple[str | None, list[str]]] = []

    def __call__(self, repo, *, revision=None, allow_patterns):
        assert repo == "acme/tiny-kda"
        self.calls.append((revision, allow_patterns))
        for file in self.source.rglob("*"):
            name = str(file.relative_to(self.source))
            if file.is_file() and any(fnmatch(name, pattern) for pattern in allow_patterns):
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, self.folder / name)
        return str(self.folder)


@pytest.fixture
def remote(tmp_path, monkeypatch):
    fake = FakeHub(published(tmp_path / "remote"), tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake)
    return fake


def same(lm: interlace.HybridLM) -> bool:
    wanted = model(vocab_size=600).state_dict()
    return all(value.equal(wanted[name]) for name, value in lm.state_dict().items())


def test_only_needed_files_are_fetched_and_all_of_one_commit(remote):
    lm = interlace.load("acme/tiny-kda", revision="v1")
    assert same(lm)
    assert lm.tokenizer.special["<|im_end|>"] == 346
    names = {path.name for path in remote.folder.iterdir()}
    shards = {name for name in names if name.endswith(".safetensors")}
    assert len(shards) > 1
    assert names - shards == {
        "config.json",
        "model.safetensors.index.json",
        "tiktoken.model",
        "tokenizer_config.json",
    }
    assert "consolidated.safetensors" not in shards
    small, weights = remote.calls
    assert small[0] == "v1"
    assert weights == (COMMIT, sorted(shards))
    interlace.load("acme/tiny-kda")
    assert [call[0] for call in remote.calls[2:]] == [None], "what is there is not fetched again"


def test_model_that_cannot_be_read_is_refused_before_its_weights(remote):
    config = json.loads((remote.source / "config.json").read_text())
    (remote.source / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    with pytest.raises(ConfigError, match="llama"):
        interlace.load("acme/tiny-kda")
    (remote.source / "config.json").unlink()
    shutil.rmtree(remote.folder)
    with pytest.raises(CheckpointError, match=r"has no config.json at v2"):
        interlace.load("acme/tiny-kda", revision="v2")
    assert len(remote.calls) == 2


def test_single_file_needs_no_index(tmp_path, remote):
    shutil.rmtree(remote.source)
    interlace.save(model(), remote.source)
    assert interlace.load("acme/tiny-kda").config.vocab_size == 61
    assert remote.calls[1] == (COMMIT, ["model.safetensors"])


def test_cache_serves_without_a_network(cache, tmp_path):
    source = published(tmp_path / "source")
    cached(cache, source)
    cached(cache, source, OTHER, "v1")
    for name, revision in [("acme/tiny-kda", None), ("acme/tiny-kda@v1", None)]:
        assert same(interlace.load(name, revision=revision))
    assert same(interlace.load("acme/tiny-kda", revision=OTHER))
    assert hub.fetch_small("acme/tiny-kda", "v1").name == OTHER


def test_shard_that_the_cache_lacks_is_named(cache, tmp_path):
    folder = cached(cache, published(tmp_path / "source"))
    shard = sorted(folder.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError) as caught:
        interlace.load("acme/tiny-kda")
    assert shard.name in str(caught.value) or "cannot be reached" in str(caught.value)


@pytest.mark.parametrize("revision", [None, "v1", COMMIT])
def test_without_network_and_cache_it_is_one_sentence(cache, revision):
    with pytest.raises(CheckpointError, match="the Hub cannot be reached") as caught:
        interlace.load("acme/tiny-kda", revision=revision)
    assert "\n" not in str(caught.value)
    assert (revision or "cache lacks of it;") in str(caught.value)


def answer(kind: type[Exception]) -> Exception:
    """An error of the package, made without the answer of a server that it wants."""
    error = kind.__new__(kind)
    Exception.__init__(error, "first line.\nsecond line")
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (answer(errors.RevisionNotFoundError), "has no revision 'v1' on the Hub"),
        (answer(errors.GatedRepoError), "accept them on its page"),
        (answer(errors.RepositoryNotFoundError), "neither a folder here nor a model on the Hub"),
        (answer(errors.HfHubHTTPError), r"could not be fetched from the Hub \(first line\); try"),
        (RuntimeError(""), r"could not be fetched from the Hub \(RuntimeError\)"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(monkeypatch, error, message):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(CheckpointError, match=message):
        interlace.load("acme/tiny-kda", revision="v1")


def test_full_disk_keeps_the_words_of_the_system(monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(OSError, match="No space left"):
        interlace.load("acme/tiny-kda")


def test_missing_package_is_told_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"no folder here.*pip install 'interlace\[hub\]'"):
        interlace.load("acme/tiny-kda")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("acme/tiny-kda", ("acme/tiny-kda", None)),
        ("acme/tiny_k.1@v1.0/x", ("acme/tiny_k.1", "v1.0/x")),
        ("default", None),
        ("./acme/tiny", None),
        (str(Path("acme/tiny").absolute()), None),
        ("../tiny", None),
        ("acme/tiny/", None),
        ("a/b/c", None),
        ("acme/-tiny", None),
        ("acme/tiny.", None),
        ("acme/ti\u00b5", None),
        ("acme/tiny\n", None),
        ("acme/tiny@", None),
        (Path("acme/tiny"), None),
    ],
)
def test_what_is_an_id(name, found):
    assert hub.hub_id(name) == found


def test_folder_comes_before_the_hub(tmp_path, monkeypatch, remote):
    monkeypatch.chdir(tmp_path)
    interlace.save(model(), "acme/tiny-kda")
    assert interlace.load("acme/tiny-kda").config.vocab_size == 61
    assert remote.calls == []
    with pytest.raises(InputError, match="revision is of a model on the Hub"):
        interlace.load("acme/tiny-kda", revision="v1")


def test_revision_must_be_a_name():
    with pytest.raises(InputError, match="a branch, a tag or a commit, got ''"):
        hub.fetch_small("acme/tiny-kda", "")


def test_command_line_takes_an_id(capsys, remote):
    shutil.rmtree(remote.source)
    interlace.save(model(vocab_size=300), remote.source)
    argv = ["generate", "acme/tiny-kda@v1", "--prompt", "a", "--max-tokens", "2", "--json"]
    assert main(argv) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["model"], result["random_weights"]) == ("acme/tiny-kda@v1", False)
    assert [call[0] for call in remote.calls] == ["v1", COMMIT, COMMIT]


def test_command_line_without_network_is_one_sentence(capsys, cache):
    assert main(["generate", "acme/tiny-kda", "--prompt", "a"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "the Hub cannot be reached" in err

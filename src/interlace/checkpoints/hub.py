"""Models of the Hugging Face Hub, through the package `huggingface_hub`.

    "owner/name" --small files--> config and tokenizer, checked --> the shards that the index names

Files go into that package's own cache, which is shared with other programs: what is there is used
without a network, a download that broke off goes on where it stopped. Only the files below and
shards in safetensors form are ever asked for, so that no code and no pickle arrives. All files of
one call are of one commit.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from interlace.checkpoints.headers import CONFIG_FILE, INDEX_FILE, SINGLE_FILE, read_index
from interlace.errors import CheckpointError, InputError, MissingExtra
from interlace.text.loading import TOKENIZER_FILES

__all__ = ["SMALL_FILES", "fetch_small", "fetch_weights", "hub_id"]

SMALL_FILES = (CONFIG_FILE, INDEX_FILE, *TOKENIZER_FILES)
"""What is fetched before a model is known to be readable."""

_PART = r"[A-Za-z0-9](?:[\w.-]{0,94}[\w-])?"
_ID = re.compile(rf"({_PART}/{_PART})(?:@([\w./-]+))?", re.ASCII)


def hub_id(name: object) -> tuple[str, str | None] | None:
    """The id "owner/name" and revision of a name such as "owner/name@revision".

    None where the name cannot be an id: it is no string, or it is a folder here.
    """
    if not isinstance(name, str) or Path(name).exists():
        return None
    found = _ID.fullmatch(name)
    return (found[1], found[2]) if found else None


def fetch_small(repo: str, revision: str | None = None) -> Path:
    """The folder with config, index and tokenizer files of a model; its name is the commit.

    Args:
        repo: "owner/name".
        revision: a branch, a tag or a commit; None is the main branch.

    Raises:
        MissingExtra: `huggingface_hub` is not installed.
        CheckpointError: no such model or revision, or neither a network nor a copy in the cache.
        InputError: an empty revision.
    """
    if revision == "":
        raise InputError("revision must be a branch, a tag or a commit, got ''.")
    folder = _fetch(repo, revision, SMALL_FILES)
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(
            f"{repo} has no {CONFIG_FILE}{_at(revision)}, so it holds no model that can be read."
        )
    return folder


def fetch_weights(repo: str, folder: Path) -> None:
    """Fetch the shards of the model whose small files are in `folder`, into the same folder.

    Args:
        repo: as given to `fetch_small`.
        folder: what `fetch_small` returned.

    Raises:
        MissingExtra, CheckpointError: as `fetch_small`; also an index that cannot be read.
    """
    index = folder / INDEX_FILE
    shards = sorted(set(read_index(index).values())) if index.is_file() else [SINGLE_FILE]
    if any(not (folder / shard).is_file() for shard in shards):
        _fetch(repo, folder.name, shards)


def _fetch(repo: str, revision: str | None, files: Iterable[str]) -> Path:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise MissingExtra(
            f"{repo!r} is no folder here, and reading it from the Hub", "huggingface_hub", "hub"
        ) from None
    try:
        return Path(snapshot_download(repo, revision=revision, allow_patterns=list(files)))
    except errors.LocalEntryNotFoundError:
        raise CheckpointError(
            f"{repo!r} is no folder here, and the Hub cannot be reached for what the local cache "
            f"lacks of it{_at(revision)}; connect to a network, or name a folder."
        ) from None
    except errors.RevisionNotFoundError:
        raise CheckpointError(f"{repo} has no revision {revision!r} on the Hub.") from None
    except errors.GatedRepoError:
        raise CheckpointError(
            f"{repo} is open only to those who accepted its terms; accept them on its page, and "
            "log in with: hf auth login."
        ) from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"{repo!r} is neither a folder here nor a model on the Hub that this login can see; "
            "check the name."
        ) from None
    except OSError as error:
        # a full disk, say, which the system names better; an answer of the Hub has no number
        if error.errno is not None and not isinstance(error, errors.HfHubHTTPError):
            raise
        raise _failed(repo, error) from None
    except Exception as error:  # the network packages below have trees of their own
        raise _failed(repo, error) from None


def _failed(repo: str, error: Exception) -> CheckpointError:
    first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return CheckpointError(f"{repo} could not be fetched from the Hub ({first}); try again later.")


def _at(revision: str | None) -> str:
    return "" if revision is None else f" at {revision}"

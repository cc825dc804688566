"""Which model a command line means: the bundled one, a preset, a folder, or one of the Hub.

Names win over folders, and folders over the Hub; a folder that is called like a preset is written
`./name`, and a revision of the Hub `owner/name@revision`. The config is known before any weight is
read, so that options, prompt and memory are checked first.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import interlace
from interlace.checkpoints.hub import fetch_small, hub_id
from interlace.checkpoints.inspect import BUNDLED_FOLDER
from interlace.config import PRESETS, HybridConfig, preset
from interlace.errors import InputError

if TYPE_CHECKING:
    from interlace.models import HybridLM

__all__ = ["Model", "find"]


log = logging.getLogger("interlace")


@dataclass(frozen=True, slots=True)
class Model:
    """A model that was found and not yet loaded.

    Args:
        name: what the user called it.
        config: its architecture.
        folder: its checkpoint, or None for random weights.
        repo: its id on the Hub, whose weights are fetched by `load`.
    """

    name: str
    config: HybridConfig
    folder: Path | None
    repo: str | None = None

    def load(self, dtype: str, seed: int) -> "HybridLM":
        """Read or draw the weights; `seed` is of random ones."""
        from interlace.text import ByteTokenizer

        if self.folder is not None and self.repo is not None:
            log.info("fetching %s, commit %s", self.repo, self.folder.name)
            commit = self.folder.name
            return interlace.load(self.repo, dtype=dtype, revision=commit).requires_grad_(False)
        if self.folder is not None:
            log.info("reading %s as %s", self.folder, dtype)
            return interlace.load(self.folder, dtype=dtype).requires_grad_(False)
        log.info("drawing random weights for %s as %s", self.name, dtype)
        lm = interlace.build(self.config, seed=seed, dtype=dtype).requires_grad_(False)
        if self.config.vocab_size >= 256:
            # random weights know no tokenizer: bytes serve as well as any
            config = self.config
            lm.tokenizer = ByteTokenizer(
                config.vocab_size, config.bos_token_id, config.eos_token_id
            )
        return lm


def find(name: str) -> Model:
    """The model called `name`.

    Raises:
        InputError: no preset and no folder of this name, or no bundled model in this installation.
        ConfigError: a folder whose config cannot be read.
        CheckpointError: a name that may be of the Hub, and cannot be fetched.
        MissingExtra: such a name without the package for the Hub.
    """
    if name == "default":
        if not (BUNDLED_FOLDER / "config.json").is_file():
            raise InputError(
                "the bundled model is missing from this installation; install it again, or name a "
                "checkpoint folder or a preset such as kimi-linear-tiny (random weights)."
            )
        return Model(name, HybridConfig.from_pretrained(BUNDLED_FOLDER), BUNDLED_FOLDER)
    if name in PRESETS:
        return Model(name, preset(name), None)
    remote = hub_id(name)
    if remote is not None:
        repo, revision = remote
        folder = fetch_small(repo, revision)
        return Model(name, HybridConfig.from_pretrained(folder), folder, repo)
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(
            f"MODEL must be a folder with a config.json, owner/name of the Hub, 'default', or one "
            f"of {', '.join(known for known in PRESETS if known != 'default')}; got {name!r}."
        )
    trained = folder / "model"
    if not (folder / "config.json").exists() and (trained / "config.json").is_file():
        raise InputError(
            f"MODEL must be a folder with a config.json, {folder} has none; a training run puts "
            f"its model into {trained}."
        )
    return Model(name, HybridConfig.from_pretrained(folder), folder)

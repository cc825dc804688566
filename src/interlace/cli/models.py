"""Which model a command line means: the bundled one, a preset, a folder, or one of the Hub.

Names win over folders, and folders over the Hub; a folder that is called like a preset is written
`./name`, and a revision of the Hub `owner/name@revision`. The config is known before any weight is
read, so that options, prompt and memory are checked first.
"""

import argparse
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import interlace
from interlace.checkpoints.hub import fetch_small, hub_id
from interlace.checkpoints.inspect import BUNDLED_FOLDER
from interlace.config import PRESETS, HybridConfig, preset, sizes
from interlace.errors import InputError

if TYPE_CHECKING:
    from interlace.models import HybridLM

__all__ = ["Experts", "Model", "add_experts", "experts_of", "find"]


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

    def weight_bytes(self, dtype: str, experts: "Experts") -> int:
        """Bytes of the weights in memory."""
        if experts.kept == "expanded":
            return sizes.weight_bytes(self.config.replace(quantization=None), dtype)
        if experts.kept == "disk":
            return sizes.weight_bytes_beside_disk(self.config, dtype, experts.cache)
        return sizes.weight_bytes(self.config, dtype)

    def load(self, dtype: str, seed: int, experts: "Experts | None" = None) -> "HybridLM":
        """Read or draw the weights; `seed` is of random ones."""
        from interlace.text import ByteTokenizer

        how = experts or Experts()
        read = partial(interlace.load, experts=how.kept, expert_cache=how.cache)

        if self.folder is not None and self.repo is not None:
            log.info("fetching %s, commit %s", self.repo, self.folder.name)
            commit = self.folder.name
            return read(self.repo, dtype=dtype, revision=commit).requires_grad_(False)
        if self.folder is not None:
            log.info("reading %s as %s", self.folder, dtype)
            return read(self.folder, dtype=dtype).requires_grad_(False)
        log.info("drawing random weights for %s as %s", self.name, dtype)
        lm = interlace.build(self.config, seed=seed, dtype=dtype).requires_grad_(False)
        if self.config.vocab_size >= 256:
            # random weights know no tokenizer: bytes serve as well as any
            config = self.config
            lm.tokenizer = ByteTokenizer(
                config.vocab_size, config.bos_token_id, config.eos_token_id
            )
        return lm


@dataclass(frozen=True, slots=True)
class Experts:
    """How the routed experts of a checkpoint are held.

    Args:
        kept: "packed", "expanded" or "disk"; None as they are stored.
        cache: bytes for those that "disk" keeps, or None.
    """

    kept: str | None = None
    cache: int | None = None


def add_experts(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say where routed experts are."""
    parser.add_argument(
        "--experts",
        choices=("packed", "expanded", "disk"),
        help="packed experts as stored (packed), as plain weights, or left on disk",
    )
    parser.add_argument(
        "--expert-cache", metavar="SIZE", help="of --experts disk; what one token visits by default"
    )


def experts_of(args: argparse.Namespace, model: Model) -> Experts:
    """The options of `add_experts`, checked.

    Raises:
        InputError: a size without --experts disk, or experts of a model that has none packed.
    """
    from interlace.planner.units import parse_bytes

    if args.expert_cache is not None and args.experts != "disk":
        raise InputError("--expert-cache needs --experts disk; give both or neither.")
    if args.experts is None:
        return Experts()
    if model.folder is None or not sizes.packs_experts(model.config):
        raise InputError(
            f"--experts {args.experts} needs a checkpoint with packed experts, and {model.name} is "
            "none; leave it out."
        )
    cache = args.expert_cache
    return Experts(
        args.experts, None if cache is None else int(parse_bytes(cache, "--expert-cache"))
    )


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

"""Which model is meant: a preset, a published model, a file, a folder, or a config at hand."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from interlace.checkpoints.headers import INDEX_FILE, SINGLE_FILE, read_folder
from interlace.checkpoints.inspect import BUNDLED_FOLDER
from interlace.checkpoints.names import VISION_PREFIXES
from interlace.config import PRESETS, HybridConfig, preset
from interlace.config.published import read_file
from interlace.errors import InputError
from interlace.planner.description import Description
from interlace.planner.families import describe

__all__ = ["find", "published"]


@cache
def published() -> dict[str, dict[str, Any]]:
    """Models of other makers by name: `config`, and the `source` of its numbers."""
    found: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name("models.json").read_text()
    )
    return found


def find(model: str | Path | HybridConfig | Mapping[str, Any]) -> Description:
    """The description of the model that is meant.

    Args:
        model: a name (names win over files; write `./name` for a file), a path, or a config.

    Raises:
        InputError: nothing of that name.
        ConfigError: a config that cannot be read.
        CheckpointError: a folder whose weights are damaged.
    """
    if isinstance(model, HybridConfig):
        return describe(model, "this model")
    if isinstance(model, Mapping):
        return describe(model, str(model.get("model_type", "this model")))
    name = str(model)
    if isinstance(model, str):
        if name in PRESETS and not (name == "default" and BUNDLED_FOLDER.is_dir()):
            return describe(preset(name), name)
        if name in published():
            return describe(published()[name]["config"], name)
    path = BUNDLED_FOLDER if name == "default" else Path(name)
    if not path.exists():
        names = ", ".join([*PRESETS, *published()])
        raise InputError(
            f"MODEL must be a config.json, a folder with one, or one of {names}; got {name!r}."
        )
    description = describe(read_file(path), name)
    weights = path.is_dir() and any((path / file).is_file() for file in (SINGLE_FILE, INDEX_FILE))
    return _with_files(description, path) if weights else description


def _with_files(description: Description, folder: Path) -> Description:
    """Say what the files hold where that is not what the config implies."""
    tensors = {
        name: tensor
        for name, tensor in read_folder(folder).tensors.items()
        if not name.startswith(VISION_PREFIXES)
    }
    size = sum(tensor.nbytes for tensor in tensors.values())
    note = f"the files of {folder} hold {size:,} bytes of tensors"
    return replace(description, notes=(*description.notes, note))

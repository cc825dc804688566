"""Training recipes: TOML to frozen dataclasses, with every key checked by name.

    [model]      preset and changed config fields, start values
    [[init]]     start values of parameters whose name matches a pattern
    [data]       files or a manifest, row length, rows per step; [[data.stage]] changes them later
    [optimizer]  "adamw" or "muon", rates, decay, clipping; [[optimizer.group]] for exceptions
    [schedule]   warm-up, length, shape
    [run]        output folder, seed, threads, processes, precision, what is written when

Paths are relative to the recipe, except `run.out`, which is relative to the working folder.
Standard library only.
"""

import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interlace.errors import InputError

__all__ = [
    "DataRecipe",
    "GroupRule",
    "InitRule",
    "ModelRecipe",
    "OptimizerRecipe",
    "Recipe",
    "RunRecipe",
    "ScheduleRecipe",
    "StageRule",
    "load_recipe",
    "parse_recipe",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecipe:
    """Which model is trained and how its weights start.

    `config` holds changed fields of `HybridConfig`. `num_hidden_layers` or `ratio` there lay the
    layers out anew. `linear_init` is "config" (N(0, initializer_range)) or "fan_in" (N(0, 1 /
    inputs)). `decay_range` makes the decay -g of a KDA channel start log-uniform between the two
    numbers. `start` names a checkpoint of the same model, whose weights are taken as they are.
    """

    preset: str = "default"
    start: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    linear_init: str = "config"
    embedding_std: float | None = None
    decay_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _one_of("model.linear_init", self.linear_init, ("config", "fan_in"))
        if self.decay_range is not None and not 0 < self.decay_range[0] < self.decay_range[1]:
            raise InputError(
                f"model.decay_range must be two rising positive numbers, got {self.decay_range}."
            )
        _not_negative("model", self, "embedding_std")


@dataclass(frozen=True, kw_only=True, slots=True)
class InitRule:
    """Parameters whose name matches `match` are multiplied by `scale`, or set to zero."""

    match: str
    scale: float = 1.0
    zero: bool = False

    def __post_init__(self) -> None:
        _pattern("init.match", self.match)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageRule:
    """From the 0-based `first_step` on, rows are cut otherwise: usually fewer and longer."""

    first_step: int
    sequence_length: int
    batch: int
    overruns: float = 0.0

    def __post_init__(self) -> None:
        _positive("data.stage", self, "first_step", "sequence_length", "batch")
        _share("data.stage.overruns", self.overruns)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRecipe:
    """Text and how it is cut.

    Either `files` (globs) or `manifest`; `batch` is rows per step over all processes. What
    `held_out` matches is scored and never trained on, also where `files` matches it. `overruns` is
    the share of rows in which a piece is repeated for too long, so that its end is learned.
    """

    files: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    manifest: str | None = None
    sequence_length: int = 512
    batch: int = 16
    overruns: float = 0.0
    eval_bytes: int = 65536
    eval_length: int = 2048
    stage: tuple[StageRule, ...] = ()

    def __post_init__(self) -> None:
        _positive("data", self, "sequence_length", "batch", "eval_bytes", "eval_length")
        _share("data.overruns", self.overruns)
        starts = [rule.first_step for rule in self.stage]
        if starts != sorted(set(starts)):
            raise InputError(
                "the first_step of each data.stage must be later than the one before, got "
                f"{starts}."
            )
        if bool(self.files) == (self.manifest is not None):
            raise InputError(
                "[data] must name either files or a manifest; give exactly one of the two."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRule:
    """Parameters whose name matches `match` train with another rate or decay."""

    match: str
    lr_scale: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        _pattern("optimizer.group.match", self.match)
        _not_negative("optimizer.group", self, "lr_scale", "weight_decay")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerRecipe:
    """The optimiser and its settings.

    `lr`, `betas`, `eps` and `weight_decay` belong to AdamW, the `muon_` fields to hidden matrices.
    """

    name: str = "adamw"
    lr: float = 3e-3
    betas: tuple[float, float] = (0.9, 0.97)
    eps: float = 1e-8
    weight_decay: float = 0.05
    muon_lr: float = 0.02
    muon_momentum: float = 0.95
    muon_steps: int = 5
    muon_weight_decay: float = 0.05
    clip: float = 1.0
    group: tuple[GroupRule, ...] = ()

    def __post_init__(self) -> None:
        _one_of("optimizer.name", self.name, ("adamw", "muon"))
        _positive("optimizer", self, "lr", "eps", "muon_lr", "muon_steps", "clip")
        _not_negative("optimizer", self, "weight_decay", "muon_weight_decay")
        for name, share in (
            ("betas", self.betas[0]),
            ("betas", self.betas[1]),
            ("muon_momentum", self.muon_momentum),
        ):
            if not 0 <= share < 1:
                raise InputError(f"optimizer.{name} must lie in [0, 1), got {share}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleRecipe:
    """The learning rate over the steps.

    `floor` is a share of the full rate, `cooldown` the share of `steps` over which
    "linear-cooldown" falls.
    """

    steps: int
    warmup: int = 40
    shape: str = "cosine"
    floor: float = 0.02
    cooldown: float = 1 / 3

    def __post_init__(self) -> None:
        _one_of("schedule.shape", self.shape, ("cosine", "linear-cooldown"))
        _positive("schedule", self, "steps")
        if self.warmup < 0 or not 0 <= self.floor <= 1 or not 0 < self.cooldown <= 1:
            raise InputError(
                "schedule.warmup must not be negative, floor must lie in 0..1 and cooldown in (0, "
                "1], "
                f"got {self.warmup}, {self.floor}, {self.cooldown}."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecipe:
    """Where a run writes and how it computes.

    `ema` is the decay of averaged weights (off when missing); `export` says which weights are saved
    at the end; `cpu_limit` ends the run after so many CPU seconds of all processes together.
    """

    out: str
    seed: int = 0
    threads: int = 1
    processes: int = 1
    precision: str = "bf16"
    compile: bool = False
    log_every: int = 10
    eval_every: int = 250
    monitor_every: int = 1000
    checkpoint_every: int = 250
    ema: float | None = None
    export: str = "final"
    cpu_limit: float | None = None

    def __post_init__(self) -> None:
        _one_of("run.precision", self.precision, ("bf16", "float32"))
        _one_of("run.export", self.export, ("final", "averaged"))
        _positive("run", self, "threads", "processes", "log_every", "eval_every", "monitor_every")
        _positive("run", self, "checkpoint_every")
        if not self.out or "\0" in self.out:
            raise InputError(f"run.out must be the name of a folder, got {self.out!r}.")
        # one is added for a second stream of start values
        if not 0 <= self.seed < 2**63 - 1:
            raise InputError(f"run.seed must lie in 0..2^63-2, got {self.seed}.")
        if self.cpu_limit is not None and self.cpu_limit <= 0:
            raise InputError(f"run.cpu_limit must be positive, got {self.cpu_limit}.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise InputError(f"run.ema must lie between 0 and 1, got {self.ema}.")
        if self.export == "averaged" and self.ema is None:
            raise InputError('run.export = "averaged" needs averaged weights: set run.ema.')


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A whole recipe; `folder` is where relative paths start."""

    model: ModelRecipe
    data: DataRecipe
    optimizer: OptimizerRecipe
    schedule: ScheduleRecipe
    run: RunRecipe
    init: tuple[InitRule, ...] = ()
    folder: Path = Path()

    def __post_init__(self) -> None:
        drawn = ("linear_init", "embedding_std", "decay_range")
        plain = ModelRecipe()
        changed = [key for key in drawn if getattr(self.model, key) != getattr(plain, key)]
        if self.model.start is not None and (self.init or changed):
            what = f"model.{changed[0]}" if changed else "init"
            raise InputError(
                f"model.start takes the weights of {self.model.start} as they are; leave out "
                f"{what}."
            )
        for name, rows in (
            ("data.batch", self.data.batch),
            *(("data.stage.batch", rule.batch) for rule in self.data.stage),
        ):
            if rows % self.run.processes:
                raise InputError(
                    f"{name} must be a multiple of run.processes, got {rows} rows for "
                    f"{self.run.processes} processes."
                )

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain values, without its folder."""
        values = dataclasses.asdict(self)
        del values["folder"]
        return values


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe file.

    Args:
        path: a TOML file.
        overrides: "section.key=value" with a TOML value (a bare word is taken as a string).

    Raises:
        InputError: a file that is no recipe, an unknown key, a wrong type or value.
    """
    path = Path(path)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"the recipe {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"the recipe {path} must be TOML: {error}.") from error
    for override in overrides:
        _override(values, override)
    return parse_recipe(values, folder=path.parent)


def parse_recipe(values: Mapping[str, Any], folder: Path = Path()) -> Recipe:
    """A recipe from nested plain values, as TOML gives them; see `load_recipe`."""
    _known("", values, [f.name for f in dataclasses.fields(Recipe) if f.name != "folder"])
    sections: dict[str, Any] = {}
    for name, kind in (
        ("model", ModelRecipe),
        ("data", DataRecipe),
        ("optimizer", OptimizerRecipe),
        ("schedule", ScheduleRecipe),
        ("run", RunRecipe),
    ):
        sections[name] = _section(name, values.get(name, {}), kind)
    rules = values.get("init", [])
    if not isinstance(rules, list):
        raise InputError("init must be written as [[init]] tables.")
    sections["init"] = tuple(_section("init", rule, InitRule) for rule in rules)
    return Recipe(**sections, folder=folder)


def _section(name: str, values: Any, kind: type[Any]) -> Any:
    if not isinstance(values, Mapping):
        raise InputError(f"{name} must be a table, got {values!r}.")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    _known(name, values, list(fields))
    hints = typing.get_type_hints(kind)
    for key, spec in fields.items():
        required = (
            spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING
        )
        if required and key not in values:
            raise InputError(f"the recipe must set {name}.{key}.")
    return kind(
        **{key: _value(f"{name}.{key}", value, hints[key]) for key, value in values.items()}
    )


def _value(name: str, value: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _value(name, value, next(arg for arg in args if arg is not type(None)))
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InputError(f"{name} must be a list, got {value!r}.")
        if args[-1] is Ellipsis:
            return tuple(_value(name, item, args[0]) for item in value)
        if len(value) != len(args):
            raise InputError(f"{name} must have {len(args)} items, got {len(value)}.")
        return tuple(_value(name, item, arg) for item, arg in zip(value, args, strict=True))
    if dataclasses.is_dataclass(hint):
        return _section(name, value, typing.cast(type[Any], hint))
    kind = origin or hint
    if kind is Mapping or kind is dict or (isinstance(kind, type) and issubclass(kind, Mapping)):
        kind = Mapping
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise InputError(f"{name} must fit in a float, got {value}.") from None
    if isinstance(value, float) and not math.isfinite(value):
        # every comparison with NaN is false, so no check of a range would see it
        raise InputError(f"{name} must be a finite number, got {value}.")
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise InputError(f"{name} must be of type {kind.__name__}, got {value!r}.")
    return value


def _known(section: str, values: Mapping[str, Any], names: list[str]) -> None:
    prefix = f"{section}." if section else ""
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.0)
            raise InputError(
                f"unknown key {prefix}{key} in the recipe; the nearest known key is "
                f"{prefix}{near[0]}."
            )


def _override(values: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    if not separator or not name.strip():
        raise InputError(f"an override must look like section.key=value, got {override!r}.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *path, last = name.strip().split(".")
    for part in path:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise InputError(f"{part} in the override {override!r} is no table of the recipe.")
    values[last] = value


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")


def _pattern(name: str, value: str) -> None:
    try:
        re.compile(value)
    except re.error as error:
        raise InputError(f"{name} must be a regular expression, got {value!r}: {error}.") from error


def _not_negative(section: str, values: Any, *names: str) -> None:
    for name in names:
        value = getattr(values, name)
        if value is not None and value < 0:
            raise InputError(f"{section}.{name} must not be negative, got {value}.")


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InputError(f"{name} must lie between 0 and 1, got {value}.")


def _positive(section: str, values: Any, *names: str) -> None:
    for name in names:
        if getattr(values, name) <= 0:
            raise InputError(f"{section}.{name} must be positive, got {getattr(values, name)}.")

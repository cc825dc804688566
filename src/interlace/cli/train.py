"""`interlace train RECIPE.toml`: train a model as a recipe says."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from interlace.errors import InputError

__all__ = ["add"]


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "train",
        parents=[common],
        help="train a model as a recipe says",
        description=(
            "Train a model as a recipe says. Checkpoints are written as it goes; a run that was "
            "stopped continues with --resume as if it had not been. docs/training.md lists every "
            "key of a recipe."
        ),
        epilog="example: interlace train recipes/default/recipe.toml --set schedule.steps=100",
    )
    parser.add_argument("recipe", metavar="RECIPE.toml", type=Path, help="what to train, and how")
    parser.add_argument(
        "--resume", action="store_true", help="continue from the last checkpoint of this recipe"
    )
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        dest="overrides",
        action="append",
        default=[],
        help="change a value of the recipe, for instance schedule.steps=100; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    if not args.recipe.is_file():
        raise InputError(f"RECIPE must be a TOML file, there is none at {args.recipe}.")
    for change in args.overrides:
        key, equals, _ = change.partition("=")
        if not (equals and key.strip()):
            raise InputError(f"--set must be KEY=VALUE, got {change!r}.")

    from interlace import training

    result = training.run(
        args.recipe, resume=args.resume, overrides=args.overrides, progress=not args.quiet
    ).to_dict()
    if args.json:
        print(json.dumps(result))
    elif not args.quiet:
        print(summary(result))
    if not result["finished"]:
        print(
            f"interlace: stopped after step {result['steps']:,} with a checkpoint; "
            "--resume continues.",
            file=sys.stderr,
        )
    return 0


def summary(result: dict[str, Any]) -> str:
    """The result as a small table; what was not measured is left out."""
    rows = {
        "steps": f"{result['steps']:,}",
        "tokens": f"{result['tokens']:,}",
        "loss": _figure(result["loss"], "nats per token, of the last step"),
        "bits per byte": _figure(result["bits_per_byte"], "on the openings of the held-out files"),
        "averaged": _figure(result["bits_per_byte_averaged"], "the same, with averaged weights"),
        "wall time": _duration(result["wall_hours"]),
        "CPU time / 2": _duration(result["cpu_hours"]),
        "log": str(Path(result["out"]) / "log.jsonl"),
        "model": result["model"],
    }
    width = max(map(len, rows))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items() if value)


def _figure(value: float | None, note: str) -> str | None:
    return None if value is None else f"{value:.3f} {note}"


def _duration(hours: float) -> str:
    seconds = 3600 * hours
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if hours < 1 else f"{hours:.2f} h"

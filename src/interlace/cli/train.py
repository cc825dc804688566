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
            "stopped continues with --resume as if it had not been."
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
        width = max(map(len, result), default=0)
        for key, value in result.items():
            print(f"{key.replace('_', ' '):<{width}}  {value}")
    if not result["finished"]:
        print(
            f"interlace: stopped after step {result['steps']:,} with a checkpoint; "
            "--resume continues.",
            file=sys.stderr,
        )
    return 0

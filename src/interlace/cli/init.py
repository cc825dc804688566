"""`interlace init PRESET DIR`: a complete checkpoint with random weights."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from interlace.errors import InputError

__all__ = ["add"]

ASK_FROM = 10 * 10**9
"""Bytes from which on --yes is needed."""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "init",
        parents=[common],
        help="write a checkpoint with random weights",
        description=(
            "Write a complete checkpoint with random weights in the published layout: config, "
            "shards, K3's experts packed in MXFP4, and a tokenizer with random merges. One tensor "
            "at a time is in memory."
        ),
        epilog="example: interlace init kimi-k3-tiny tiny; interlace generate tiny --prompt hello",
    )
    parser.add_argument("preset", metavar="PRESET", help="which model; docs/guide.md lists them")
    parser.add_argument("folder", metavar="DIR", type=Path, help="a new or an empty folder")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="of the weights (0)")
    parser.add_argument(
        "--shard-size", metavar="SIZE", default="5GB", help="of tensors in one file (5GB)"
    )
    parser.add_argument("--yes", action="store_true", help="write more than 10 GB")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command: the size is said and the room is there before anything is written."""
    from interlace.checkpoints.drawn import draw_checkpoint, drawn_config, require_room
    from interlace.config.sizes import checkpoint_bytes, describe_bytes, stored_parameters
    from interlace.planner.units import parse_bytes

    shard_size = parse_bytes(args.shard_size, "--shard-size")
    config = drawn_config(args.preset)
    size = checkpoint_bytes(config)
    if size > ASK_FROM and not args.yes:
        raise InputError(
            f"{args.preset} takes {describe_bytes(size)}; say --yes to write more than "
            f"{describe_bytes(ASK_FROM)}."
        )
    require_room(config, args.folder)
    if not args.quiet:
        count = stored_parameters(config)
        print(f"{args.preset}: {count:,} parameters, {describe_bytes(size)}", file=sys.stderr)
    from tqdm import tqdm

    with tqdm(
        total=size, unit="B", unit_scale=True, delay=2, leave=False, disable=args.quiet
    ) as bar:
        saved = draw_checkpoint(
            config, args.folder, seed=args.seed, max_shard_bytes=shard_size, progress=bar.update
        )
    if args.json:
        found: dict[str, Any] = {"folder": str(saved.folder), "files": list(saved.files)}
        found |= {"tensors": saved.num_tensors, "bytes": saved.num_bytes}
        print(json.dumps({**found, "readers": list(saved.readers)}))
    elif not args.quiet:
        others = ", ".join(saved.readers) or "nobody else that we know"
        print(f"wrote {saved.num_tensors:,} tensors to {saved.folder}; read by: {others}")
    return 0

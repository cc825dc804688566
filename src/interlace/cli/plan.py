"""`interlace plan MODEL --context N`: what a context costs before anything is loaded."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from interlace.errors import InputError

__all__ = ["add"]


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    from interlace.planner.hardware import known
    from interlace.planner.request import CACHE_FORMATS, STATE_FORMATS, WEIGHT_FORMATS

    parser = commands.add_parser(
        "plan",
        parents=[common],
        help="what a context costs, before you start",
        description=(
            "Memory and time of a context by arithmetic, for any model whose config.json is of a "
            "known family. Nothing is loaded; a machine is named, or measured by "
            "'interlace bench limits'."
        ),
        epilog="example: interlace plan kimi-k3 --context 1M --tp 16 --hardware h200",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a preset, a published model by name, a config.json, a folder with one, or - (stdin)",
    )
    parser.add_argument(
        "--context", metavar="N", required=True, help="tokens: 1M is 10^6, 1Mi is 2^20"
    )
    parser.add_argument("--batch", metavar="N", default="1", help="sequences (1)")
    parser.add_argument("--tp", metavar="N", type=int, default=1, help="devices of a layer (1)")
    parser.add_argument(
        "--ep", metavar="N", type=int, default=1, help="devices that hold whole experts (1)"
    )
    parser.add_argument(
        "--cache", choices=("latent", "expanded"), default="latent", help="of MLA layers (latent)"
    )
    parser.add_argument(
        "--cache-dtype", metavar="D", help=f"{', '.join(CACHE_FORMATS)}; the weights' by default"
    )
    parser.add_argument(
        "--state-dtype", metavar="D", help=f"{', '.join(STATE_FORMATS)}; as allocated by default"
    )
    parser.add_argument("--weights", choices=WEIGHT_FORMATS, default="as-stored")
    parser.add_argument(
        "--prefill-chunk", metavar="N", default="512", help="prompt tokens per call (512)"
    )
    parser.add_argument(
        "--window",
        choices=("ring", "full"),
        default="ring",
        help="keep what a window reaches, or everything (ring)",
    )
    parser.add_argument(
        "--state-copies", metavar="N", default="1", help="states per sequence (1; k drafts: 1 + k)"
    )
    parser.add_argument(
        "--experts",
        choices=("memory", "disk"),
        default="memory",
        help="all routed experts in memory, or read from disk through a cache (memory)",
    )
    parser.add_argument(
        "--expert-cache", metavar="SIZE", help="of --experts disk; what one token visits by default"
    )
    parser.add_argument(
        "--hardware", metavar="NAME", help=f"{', '.join(known())}, or measured (this machine)"
    )
    parser.add_argument("--memory", metavar="SIZE", help="of one device, such as 141GB or 80GiB")
    parser.add_argument(
        "--fit", choices=("context", "batch"), help="say the largest that fits into the memory"
    )
    parser.add_argument(
        "--compare",
        metavar="NAME",
        nargs="+",
        default=[],
        help="beside it: all-mla, mha (of the same model), or any model; commas do as well",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=Path,
        help="draw it too: PNG, SVG or PDF (needs matplotlib), or an HTML page with controls",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command: everything is checked before anything is printed or written."""
    from interlace.planner import picture
    from interlace.planner.compare import compared
    from interlace.planner.plan import plan_for
    from interlace.planner.report import comparison, report
    from interlace.planner.source import find
    from interlace.planner.units import parse_count

    if args.plot is not None:
        picture.require(args.plot)
    description = find(_standard_input() if args.model == "-" else args.model)
    options = {
        "context": args.context,
        "batch": args.batch,
        "hardware": args.hardware,
        "memory": args.memory,
        "tp": args.tp,
        "ep": args.ep,
        "cache": args.cache,
        "cache_dtype": args.cache_dtype,
        "state_dtype": args.state_dtype,
        "weights": args.weights,
        "window": args.window,
        "prefill_chunk": parse_count(args.prefill_chunk, "--prefill-chunk"),
        "state_copies": parse_count(args.state_copies, "--state-copies"),
        "experts": args.experts,
        "expert_cache": args.expert_cache,
    }
    plan = plan_for(description, **options)
    names = [name for group in args.compare for name in group.split(",") if name]
    beside = [plan_for(compared(description, name), **options) for name in names]
    if args.fit is not None and plan.budget is None:
        raise InputError("--fit needs --memory, such as 141GB, or a --hardware with its memory.")
    found: dict[str, Any] = plan.to_dict()
    if args.fit == "context":
        found["longest_context"] = plan.longest_context()
    elif args.fit == "batch":
        found["largest_batch"] = plan.largest_batch()
    if beside:
        found["compared"] = [other.to_dict() for other in beside]
    text = report(plan, args.fit)
    if beside:
        text += "\n\n" + comparison([plan, *beside])
    if args.json:
        text = json.dumps(found, indent=2)
    if args.plot is not None:
        picture.save([plan, *beside], args.plot)
    print(text)
    return 0


def _standard_input() -> Mapping[str, Any]:
    try:
        found = json.loads(sys.stdin.buffer.read())
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"standard input must be the JSON of a config.json, got something else ({error})."
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"standard input must hold one JSON object, got {type(found).__name__}.")
    return found

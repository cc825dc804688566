"""`interlace inspect PATH`: what a checkpoint folder holds, from its config and headers alone."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from interlace.config.sizes import describe_bytes

if TYPE_CHECKING:
    from interlace.checkpoints.inspect import Summary

__all__ = ["add"]


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "inspect",
        parents=[common],
        help="what a checkpoint holds, before anything is loaded",
        description=(
            "Layers, parameters, dtypes and sizes of a checkpoint, and which tensors are missing, "
            "unknown or of another shape than its config implies: from the headers of its files, "
            "without reading a weight. Exit status 1 when the model is not whole."
        ),
        epilog="example: interlace inspect default --json",
    )
    parser.add_argument(
        "path", metavar="PATH", help="a checkpoint folder, or 'default' (the bundled model)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with all names")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command: everything is read before anything is printed."""
    from interlace.checkpoints.inspect import BUNDLED_FOLDER, inspect

    summary = inspect(BUNDLED_FOLDER if args.path == "default" else args.path)
    if args.json:
        print(json.dumps(_as_json(args.path, summary)))
    else:
        print(_text(args.path, summary))
    return 0 if summary.match.complete else 1


def _as_json(name: str, summary: "Summary") -> dict[str, Any]:
    from interlace.checkpoints.inspect import complaint, parts

    match, config = summary.match, summary.config
    found = parts(summary)
    return {
        "path": name,
        "model_type": config.published_class,
        "complete": match.complete,
        "complaint": complaint(match),
        "parameters": sum(part.parameters for part in found),
        "tensors": summary.num_tensors,
        "bytes": sum(summary.bytes_per_dtype.values()),
        "dtypes": summary.bytes_per_dtype,
        "files": {file.name: file.stat().st_size for file in summary.headers.files},
        "parts": [part._asdict() for part in found],
        "missing": match.missing,
        "unknown": match.unexpected,
        "misshaped": [
            {"name": m.name, "shape": list(m.shape), "wanted": list(m.wanted)}
            for m in match.misshaped
        ],
        "vision": match.skipped,
        "other_dtype": [
            {"name": tensor, "dtype": dtype, "layout": layout}
            for tensor, dtype, layout in match.retyped
        ],
    }


def _text(name: str, summary: "Summary") -> str:
    from interlace.checkpoints.headers import listed
    from interlace.checkpoints.inspect import complaint, parts

    config, match, found = summary.config, summary.match, parts(summary)
    files = len(summary.headers.files)
    total = sum(part.parameters for part in found)
    kinds = f"{config.num_kda_layers} KDA + {config.num_global_layers} Gated MLA"
    lines = [
        f"{name}: {config.published_class}, {config.num_hidden_layers} layers ({kinds}), "
        f"{total:,} parameters",
        f"{summary.num_tensors:,} tensors in {files} file{'s' * (files != 1)}: "
        + ", ".join(f"{d} {describe_bytes(n)}" for d, n in sorted(summary.bytes_per_dtype.items())),
        "",
        f"{'part':<10}  {'holds':<22}  {'tensors':>8}  {'parameters':>19}  size",
    ]
    lines += [
        f"{part.name:<10}  {part.holds:<22}  {part.tensors:>8,}  {part.parameters:>19,}  "
        f"{describe_bytes(part.nbytes)}"
        for part in found
    ]
    lines.append("")
    if match.skipped:
        lines.append(f"no part of the text model: {listed(match.skipped)}.")
    if match.retyped:
        shown = listed([f"{n} ({d}, not {w})" for n, d, w in match.retyped])
        lines.append(f"of another dtype than the layout, which is legal: {shown}.")
    wrong = complaint(match)
    lines.append("The model is whole." if wrong is None else f"NOT WHOLE: the checkpoint {wrong}.")
    return "\n".join(lines)

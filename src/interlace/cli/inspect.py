"""`interlace inspect MODEL`: what a checkpoint folder holds, from its config and headers alone.

Of a preset, which has no files, it tells what a checkpoint of it would hold.
"""

import argparse
import json
from typing import TYPE_CHECKING, Any

from interlace.config.sizes import describe_bytes

if TYPE_CHECKING:
    from interlace.checkpoints.inspect import Part, Summary
    from interlace.config import HybridConfig

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
            "without reading a weight. Exit status 1 when the model is not whole. Of a preset, "
            "which has no files: what a checkpoint of it would hold."
        ),
        epilog="example: interlace inspect default --json",
    )
    parser.add_argument(
        "path",
        metavar="MODEL",
        help="a checkpoint folder, 'default' (the bundled model), or a preset (its sizes)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with all names")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command: everything is read before anything is printed."""
    from interlace.checkpoints.inspect import BUNDLED_FOLDER, inspect
    from interlace.config import PRESETS, preset

    # names win over folders, as everywhere; a folder that is called like a preset is ./name
    if args.path in PRESETS and args.path != "default":
        config = preset(args.path)
        told = _preset_as_json if args.json else _preset_text
        print(told(args.path, config))
        return 0
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
    lines = [
        _first_line(name, config, total),
        f"{summary.num_tensors:,} tensors in {files} file{'s' * (files != 1)}: "
        + _dtypes(summary.bytes_per_dtype),
        "",
        *_table(found),
        "",
    ]
    if match.skipped:
        lines.append(f"no part of the text model: {listed(match.skipped)}.")
    if match.retyped:
        shown = listed([f"{n} ({d}, not {w})" for n, d, w in match.retyped])
        lines.append(f"of another dtype than the layout, which is legal: {shown}.")
    wrong = complaint(match)
    lines.append("The model is whole." if wrong is None else f"NOT WHOLE: the checkpoint {wrong}.")
    return "\n".join(lines)


def _first_line(name: str, config: "HybridConfig", parameters: int) -> str:
    kinds = f"{config.num_kda_layers} KDA + {config.num_global_layers} Gated MLA"
    return (
        f"{name}: {config.published_class}, {config.num_hidden_layers} layers ({kinds}), "
        f"{parameters:,} parameters"
    )


def _dtypes(sizes: dict[str, int]) -> str:
    return ", ".join(f"{dtype} {describe_bytes(size)}" for dtype, size in sorted(sizes.items()))


def _table(found: list["Part"]) -> list[str]:
    """A line for each part, under a heading."""
    return [
        f"{'part':<10}  {'holds':<22}  {'tensors':>8}  {'parameters':>19}  size",
        *(
            f"{part.name:<10}  {part.holds:<22}  {part.tensors:>8,}  {part.parameters:>19,}  "
            f"{describe_bytes(part.nbytes)}"
            for part in found
        ),
    ]


def _preset_as_json(name: str, config: "HybridConfig") -> str:
    """Keys as of a checkpoint where they mean the same, and the config and its groups."""
    from interlace.checkpoints.inspect import implied
    from interlace.config.sizes import parameter_groups

    found, dtypes = implied(config)
    told = {
        "preset": name,
        "model_type": config.published_class,
        "config": config.to_dict(),
        "parameters": sum(part.parameters for part in found),
        "groups": parameter_groups(config),
        "tensors": sum(part.tensors for part in found),
        "bytes": sum(part.nbytes for part in found),
        "dtypes": dtypes,
        "parts": [part._asdict() for part in found],
    }
    return json.dumps(told)


def _widths(config: "HybridConfig") -> str:
    mla = (
        f"Gated MLA: {config.num_attention_heads} heads, queries {config.qk_nope_head_dim} + "
        f"{config.qk_rope_head_dim}, values {config.v_head_dim}, latent {config.kv_lora_rank} + "
        f"{config.qk_rope_head_dim}"
    )
    kda = f"KDA: {config.kda_num_heads} heads of {config.kda_head_dim}"
    widths = f"hidden {config.hidden_size:,}, vocabulary {config.vocab_size:,}"
    mixers = [mla] * bool(config.num_global_layers) + [kda] * bool(config.num_kda_layers)
    return "; ".join([widths, *mixers])


def _preset_text(name: str, config: "HybridConfig") -> str:
    from interlace.checkpoints.inspect import implied
    from interlace.config.sizes import parameter_groups

    found, dtypes = implied(config)
    total, tensors = sum(p.parameters for p in found), sum(p.tensors for p in found)
    groups = [(key.replace("_", " "), n) for key, n in parameter_groups(config).items() if n]
    return "\n".join(
        [
            _first_line(name, config, total),
            f"{tensors:,} tensors that a checkpoint of it would hold: {_dtypes(dtypes)}",
            _widths(config),
            "",
            *_table(found),
            "",
            *(f"{key:<20}  {n:>19,} parameters" for key, n in groups),
            "",
            f"A preset has no weights; `interlace init {name} FOLDER` writes random ones.",
        ]
    )

"""`interlace check [MODEL]`: every way of computing a model against float64, layer by layer."""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from interlace.errors import InputError

if TYPE_CHECKING:
    from interlace.check import Finding, Recording, Report
    from interlace.cli.models import Model

__all__ = ["add"]

DTYPES = ("float32", "bfloat16", "float16", "float64")

COLUMNS = ("one call", "by token", "in parts", "padded", "packed")
_COLUMN_OF = {
    "chunked": "one call",
    "expanded": "one call",
    "recurrent": "by token",
    "absorbed": "by token",
    "token by token": "by token",
    "rebuilt": "in parts",
    "padded": "padded",
    "padded left": "padded",
    "padded, cached": "padded",
    "packed": "packed",
    "packed, cached": "packed",
}
_LATER = {
    "saved = loaded": ", saved",
    "cache saved": ", cache saved",
    "recorded elsewhere": ", recorded",
}
_MEMORY = ("state", "conv_q", "conv_k", "conv_v", "latent")


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "check",
        parents=[common],
        help="prove a checkpoint before trusting it",
        description=(
            "Compute a model in every way there is (chunked, recurrent, expanded, absorbed, cut "
            "anywhere, batched, saved and loaded) and measure each, layer by layer, against a "
            "second implementation in float64. Exit status 1 when one is outside its bound."
        ),
        epilog="example: interlace check default --record logits.safetensors",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        default="default",
        help="a checkpoint folder, 'default' (the bundled model), or a preset (random weights)",
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of the weights; by default as stored, then the same weights in float32",
    )
    parser.add_argument(
        "--tokens", metavar="N", type=int, help="random ids in the longest of three rows (131)"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="of the ids, and of random weights (0)"
    )
    parser.add_argument(
        "--against",
        metavar="FILE",
        type=Path,
        help="read the ids of this file, and judge its logits too",
    )
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        help="when all is well, write ids and logits of the longest row, for --against elsewhere",
    )
    parser.add_argument(
        "--no-save", action="store_true", help="do not save and load the model (disk, memory)"
    )
    parser.add_argument(
        "--fail-fast", action="store_true", help="end at the first layer that is outside its bounds"
    )
    parser.add_argument("--threads", metavar="N", type=int, help="CPU threads of the products")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command: every check of the input first, then the weights, then the proof."""
    from interlace.cli.models import find

    _check_numbers(args)
    model = find(args.model)
    dtypes = [args.dtype] if args.dtype else _dtypes(model.config.dtype)

    import torch

    from interlace import check

    recording, rows = _rows(args, model)
    for dtype in dtypes:
        check.require_memory(model.config, [len(r) for r in rows], dtype, not args.no_save)
        if not args.no_save:
            check.require_disk(model.config, dtype)
    if args.record is not None:
        check.check_target(args.record)
    if args.threads is not None:
        torch.set_num_threads(args.threads)

    reports: list[Report] = []
    recorded = None
    for number, dtype in enumerate(dtypes):
        lm = model.load(dtype, args.seed)
        if model.folder is None:
            check.enliven(lm, args.seed)
        with _Progress(args.quiet, dtype) as progress:
            report = check.check_model(
                lm,
                rows,
                saved=not args.no_save,
                recording=None if number else recording,
                fail_fast=args.fail_fast,
                progress=progress,
            )
        reports.append(report)
        if args.record is not None and not number:
            recorded = check.record(lm, torch.tensor(rows[:1]))
        if not args.json:
            print(table(model.name, report, _weights(model, number)))
    ok = all(report.ok for report in reports)
    if ok and recorded is not None:
        check.write_recording(args.record, recorded)
    elif recorded is not None:
        print(f"interlace: nothing was written to {args.record}.", file=sys.stderr)
    if args.json:
        print(json.dumps(_as_json(model, reports, ok, args)))
    return 0 if ok else 1


def _check_numbers(args: argparse.Namespace) -> None:
    if args.threads is not None and args.threads < 1:
        raise InputError(f"--threads must be at least 1, got {args.threads}.")
    if args.tokens is not None and args.tokens < 2:
        raise InputError(f"--tokens must be at least 2, got {args.tokens}.")
    if args.tokens is not None and args.against is not None:
        raise InputError("--against brings its own ids: leave out --tokens.")
    if not 0 <= args.seed < 2**63:
        raise InputError(f"--seed must lie in 0..2^63-1, got {args.seed}.")


def _dtypes(stored: str) -> list[str]:
    """As stored, and where that is narrow the same weights in float32: its bound is sharper."""
    return [stored] if stored in ("float32", "float64") else [stored, "float32"]


def _rows(args: argparse.Namespace, model: "Model") -> tuple["Recording | None", list[list[int]]]:
    from interlace import check

    vocab = model.config.vocab_size
    if args.against is not None:
        recording = check.read_recording(args.against, vocab)
        return recording, check.rows_with(recording.tokens)
    return None, check.draw_rows(vocab, args.tokens or check.DEFAULT_TOKENS, args.seed)


def _weights(model: "Model", number: int) -> str:
    if model.folder is None:
        return "random weights"
    return "the same weights" if number else "weights as stored"


class _Progress:
    """A bar for a check that lasts over two seconds."""

    def __init__(self, quiet: bool, dtype: str) -> None:
        self._quiet = quiet
        self._dtype = dtype
        self._bar: Any = None

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(
                total=total,
                desc=f"check in {self._dtype}",
                unit=" steps",
                delay=2,
                leave=False,
                disable=self._quiet,
            )
        self._bar.update(done - self._bar.n)


# -- output


def _as_json(
    model: "Model", reports: list["Report"], ok: bool, args: argparse.Namespace
) -> dict[str, Any]:
    bad = next((report.first_bad for report in reports if not report.ok), None)
    return {
        "model": model.name,
        "random_weights": model.folder is None,
        "ok": ok,
        "first_bad": None if bad is None else bad.to_dict(),
        "recorded": str(args.record) if ok and args.record is not None else None,
        "runs": [report.to_dict() for report in reports],
    }


def table(name: str, report: "Report", weights: str) -> str:
    """One line for each part of each layer, a column for each way, and the verdict."""
    lengths = report.lengths
    rows = ", ".join(f"{n:,}" for n in lengths[:-1]) + " and " * (len(lengths) > 1)
    lines = [
        f"{name}: {weights}, in {report.dtype}; rows of {rows}{lengths[-1]:,} tokens",
        "",
        _line("layer", "part", "bound", dict(zip(COLUMNS, COLUMNS, strict=True))),
    ]
    norms = [f for f in report.findings if f.kind == "norm"]
    for (layer, label), found in _groups(f for f in report.findings if f not in norms or not f.ok):
        bounds = max(f.bound for f in found)
        cells: dict[str, str] = {}
        for finding in sorted(found, key=_excess):
            cells[_column(finding)] = _figure(finding)
        lines.append(_line("" if layer is None else str(layer), label, f"{bounds:.1e}", cells))
    worst = max(norms, key=_excess)
    lines += [
        _line("", f"{len(norms)} norms", f"{worst.bound:.1e}", {"one call": _figure(worst)}),
        "",
        "errors against float64. one call: chunked (KDA), expanded (MLA); by token: recurrent,",
        "absorbed; in parts: with a cache, the worst of several cuts; memory: what the cache keeps",
    ]
    if report.undecided:
        lines.append(
            f"{report.undecided:,} of {sum(lengths):,} tokens are left out of stream and logits: "
            "rounding may choose other experts there."
        )
    return "\n".join([*lines, "", verdict(report), ""])


def verdict(report: "Report") -> str:
    """Green or red, and where first."""
    count, bad = len(report.findings), [f for f in report.findings if not f.ok]
    left_out = sum(not f.judged for f in report.findings)
    if bad:
        return f"RED: {bad[0].describe()} ({len(bad)} of {count} comparisons are outside)."
    note = f", {left_out} of them over no token" if left_out else ""
    return f"GREEN: {count} comparisons{note}, each within its bound; {report.seconds:.1f} s."


def _groups(findings: Iterable["Finding"]) -> list[tuple[tuple[int | None, str], list["Finding"]]]:
    """Findings that share a line."""
    groups: dict[tuple[int | None, str], list[Finding]] = {}
    for finding in findings:
        label = finding.kind
        if finding.way in _MEMORY:
            label += ", memory"
        elif finding.way in _LATER:
            label += _LATER[finding.way]
        elif finding.part == "stream":
            label = "stream"
        groups.setdefault((finding.layer, label), []).append(finding)
    return list(groups.items())


def _column(finding: "Finding") -> str:
    if finding.way in _MEMORY:
        return "padded"
    if finding.way.startswith("cut at"):
        return "in parts"
    return _COLUMN_OF.get(finding.way, "one call")


def _excess(finding: "Finding") -> float:
    if finding.bound == 0:
        return 0.0 if finding.error == 0 else float("inf")
    return finding.error / finding.bound


def _figure(finding: "Finding") -> str:
    if not finding.judged:
        return "-"
    return f"{finding.error:.1e}" + ("" if finding.ok else " !")


def _line(layer: str, part: str, bound: str, cells: dict[str, str]) -> str:
    columns = "  ".join(f"{cells.get(name, ''):<9}" for name in COLUMNS)
    return f"{layer:>5}  {part:<18}  {bound:<7}  {columns}".rstrip()

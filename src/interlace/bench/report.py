"""Results as a JSON object, as pages of Markdown, and as files named by date and machine.

{"what", "date", "machine", "results": [...]}      one object per measurement
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from interlace.bench import machine
from interlace.bench.timing import busy

__all__ = ["all_runs", "page", "result", "write"]

_UNITS = {"bf16": (1e9, "GFLOP/s"), "fp32": (1e9, "GFLOP/s")}
_BYTES = (1e9, "GB/s")


def result(what: str, results: Any, of: Sequence[str] = ()) -> dict[str, Any]:
    """One measurement with its date and machine.

    Args:
        what: "limits", "ops" or "model".
        results: what was measured.
        of: the models or sizes, and peers; they become part of a file's name.
    """
    return {
        "what": what,
        "of": list(of),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "results": results,
    }


def all_runs(what: str, results: Any) -> list[Mapping[str, Any]]:
    """Every kept run of a measurement."""
    parts = results["runs"].values() if what == "limits" else results
    return [run for part in parts for run in part["runs"]]


def write(measured: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write JSON and Markdown into `folder`, each whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [measured["what"], *measured["of"], measured["date"][:10], machine.slug()]
    stem = "-".join(parts)
    texts = {".json": json.dumps(measured, indent=2) + "\n", ".md": page(measured)}
    paths = []
    for suffix, text in texts.items():
        path = folder / f"{stem}{suffix}"
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            part.write_text(text)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
        paths.append(path)
    return paths


def page(measured: Mapping[str, Any]) -> str:
    """The measurement as Markdown."""
    about = measured["machine"]
    body = _BODIES[measured["what"]]
    lines = [
        f"# interlace bench {measured['what']}",
        "",
        f"{about['cpu']}, {about['cores']} cores, {about['torch_threads']} threads; torch "
        f"{about['torch']}, Python {about['python']}; {measured['date'][:10]}.",
        "",
        *body(measured["results"]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _limits(limits: Mapping[str, Any]) -> list[str]:
    rows = [
        ("bf16 matrix product", limits["bf16_flops"] / 1e9, "GFLOP/s"),
        ("fp32 matrix product", limits["fp32_flops"] / 1e9, "GFLOP/s"),
        ("read", limits["read_bandwidth"] / 1e9, "GB/s"),
        ("read and write in place, both counted", limits["copy_bandwidth"] / 1e9, "GB/s"),
    ]
    lines = ["| limit | |", "|---|---:|"]
    lines += [f"| {name} | {value:.1f} {unit} |" for name, value, unit in rows]
    lines += ["", "| kind of layer | share of its limit |", "|---|---:|"]
    lines += [f"| {name} | {share:.1%} |" for name, share in limits["efficiency"].items()]
    lines += ["", "| layer | fixed time per call |", "|---|---:|"]
    lines += [
        f"| {name} | {1e6 * seconds:.0f} us |"
        for name, seconds in limits["seconds_per_layer_call"].items()
    ]
    return [*lines, "", _others(all_runs("limits", limits))]


def _ops(records: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "Median of the runs; a share is that of the loop named, timed in the same runs; the error "
        "is max |a - b| / max(1, max |b|) against float64 over a few heads or rows.",
        "",
        "| size | operator | | time | rate | limit | share | error |",
        "|---|---|---|---:|---:|---|---:|---:|",
    ]
    for r in records:
        scale, unit = _UNITS.get(r["limit"], _BYTES)
        lines.append(
            f"| {r['size']} | {r['operator']} | {r['detail']} | {_time(r['seconds'])} | "
            f"{r['rate'] / scale:.1f} {unit} | {r['limit']}, {r['limit_rate'] / scale:.1f} | "
            f"{r['share']:.1%} | {r['error']:.1e} |"
        )
    return [*lines, "", _others(all_runs("ops", records))]


def _model(records: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for kind, title in (("decode", "Decoding, ms per token"), ("prefill", "Prefill, tokens/s")):
        chosen = [r for r in records if r["kind"] == kind]
        if chosen:
            lines += [f"## {title}", "", *_grid(kind, chosen), ""]
    ratios = list(_ratios(records))
    if ratios:
        lines += [
            "## Times as long as ours",
            "",
            "Median of the ratios within the runs.",
            "",
            "| | | ratio | every run |",
            "|---|---:|---:|---|",
            *ratios,
            "",
        ]
    notes = list(_notes(records))
    if notes:
        lines += ["## Peers", "", *notes, ""]
    return [*lines, _others(all_runs("model", records))]


def _grid(kind: str, records: Sequence[Mapping[str, Any]]) -> list[str]:
    counts = sorted({r["tokens"] for r in records})
    systems = list(dict.fromkeys(name for r in records for name in r["median_seconds"]))
    head = "cached tokens" if kind == "decode" else "prompt"
    lines = [
        f"| {head} | " + " | ".join(f"{n:,}" for n in counts) + " |",
        "|---|" + "---:|" * len(counts),
    ]
    for name in systems:
        cells = []
        for n in counts:
            found = [r["median_seconds"][name] for r in records if _has(r, n, name)]
            if not found:
                cells.append("-")
            elif kind == "decode":
                cells.append(f"{1e3 * found[0]:.1f}")
            else:
                cells.append(f"{n / found[0]:,.0f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _has(record: Mapping[str, Any], tokens: int, name: str) -> bool:
    return record["tokens"] == tokens and name in record["median_seconds"]


def _ratios(records: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """A row for each system that is not the first of its family, with every run."""
    lines = []
    for r in records:
        for name in r["median_seconds"]:
            base = name.rsplit(" ", 1)[-1] if " " in name else name.removesuffix("-mla")
            if base == name or base not in r["median_seconds"]:
                continue
            each = sorted(run["seconds"][name] / run["seconds"][base] for run in r["runs"])
            middle = (each[(len(each) - 1) // 2] + each[len(each) // 2]) / 2
            shown = ", ".join(f"{x:.2f}" for x in each)
            lines.append(f"| {r['kind']}, {name} | {r['tokens']:,} | {middle:.2f} | {shown} |")
    return lines


def _notes(records: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    lines = []
    for r in records:
        for name, note in r["notes"].items():
            where = f"- {name}, {r['kind']} at {r['tokens']:,}: "
            if isinstance(note, str):
                lines.append(f"- {name}: left out, {note}.")
                continue
            parts = [f"version {note['version']}"]
            if "form" in note:
                parts.append(f"form {note['form']}")
            if "logit_gap" in note:
                parts.append(f"logits differ by {note['logit_gap']:.2g} of the largest")
            parts += [f"{form} left out: {why}" for form, why in note.get("skipped", {}).items()]
            lines.append(where + "; ".join(parts) + ".")
    return list(dict.fromkeys(lines))


def _others(runs: Sequence[Mapping[str, Any]]) -> str:
    shares = sorted(run["others_share"] for run in runs)
    text = (
        f"Others took {shares[len(shares) // 2]:.1%} of the CPU during the median run, "
        f"{shares[-1]:.1%} at most."
    )
    warning = busy(runs)
    if warning is not None:
        text += f" **{warning[0].upper()}{warning[1:]}.**"
    return text


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


_BODIES: dict[str, Callable[[Any], list[str]]] = {"limits": _limits, "ops": _ops, "model": _model}

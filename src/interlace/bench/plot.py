"""Pictures of a measurement: time against depth on log axes, and shares of the limit as bars."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from interlace.errors import InputError

__all__ = ["require_plot", "save"]

_SUFFIXES = (".png", ".svg", ".pdf")


def require_plot(path: Path) -> None:
    """Refuse before anything is measured what could not be drawn in the end.

    Raises:
        InputError: matplotlib is missing, or a suffix that it does not know.
    """
    if path.suffix not in _SUFFIXES:
        raise InputError(f"--plot must end in {', '.join(_SUFFIXES)}, got {path.name!r}.")
    if find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib: pip install 'interlace[plot]'.")


def save(measured: Mapping[str, Any], path: Path) -> None:
    """Draw a measurement of models or operators.

    Args:
        measured: as `report.result` makes it.
        path: picture to write; its suffix says which kind.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ops = measured["what"] == "ops"
    height = max(4.0, 0.3 * len(measured["results"])) if ops else 5.0
    figure = Figure(figsize=(9, height), layout="constrained")
    FigureCanvasAgg(figure)
    (_bars if ops else _curves)(figure, measured["results"])
    about = measured["machine"]
    figure.suptitle(
        f"{about['cpu']}, {about['torch_threads']} threads, {measured['date'][:10]}", fontsize=9
    )
    part = path.with_name(f"{path.stem}.part{path.suffix}")
    try:
        figure.savefig(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _curves(figure: Any, records: Sequence[Mapping[str, Any]]) -> None:
    kinds = [kind for kind in ("decode", "prefill") if any(r["kind"] == kind for r in records)]
    for column, kind in enumerate(kinds):
        axes = figure.add_subplot(1, len(kinds), column + 1)
        chosen = [r for r in records if r["kind"] == kind]
        for name in dict.fromkeys(name for r in chosen for name in r["median_seconds"]):
            points = sorted(
                (r["tokens"], r["median_seconds"][name])
                for r in chosen
                if name in r["median_seconds"]
            )
            scale = 1e3 if kind == "decode" else 1.0
            style = "--" if " " in name else ":" if name.endswith("-mla") else "-"
            axes.plot(
                [n for n, _ in points],
                [scale * t for _, t in points],
                style,
                marker="o",
                label=name,
            )
        # depth 0 has a place on a log axis only with a linear piece before it
        axes.set_xscale("symlog", base=2, linthresh=256)
        axes.set_yscale("log")
        axes.set_xlabel("cached tokens" if kind == "decode" else "tokens of the prompt")
        axes.set_ylabel("ms per token" if kind == "decode" else "seconds")
        axes.grid(True, alpha=0.3)
        axes.legend(fontsize=7)


def _bars(figure: Any, records: Sequence[Mapping[str, Any]]) -> None:
    axes = figure.add_subplot()
    labels = [f"{r['size']}: {r['operator']}, {r['detail']}" for r in records]
    axes.barh(labels, [100 * r["share"] for r in records])
    axes.invert_yaxis()
    axes.set_xlabel("share of its limit, %")
    axes.tick_params(axis="y", labelsize=7)

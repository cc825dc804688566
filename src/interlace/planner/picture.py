"""A plan as a picture: memory and time against context on log axes, and where the bytes are.

PNG, SVG and PDF need matplotlib; an HTML page (`page`) needs nothing.
"""

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import Any

from interlace.errors import InputError
from interlace.planner.page import page
from interlace.planner.plan import GROUPS, Plan
from interlace.planner.report import understood_in_part
from interlace.planner.units import show_bytes, show_count, show_seconds

__all__ = ["contexts", "require", "save"]

_SUFFIXES = (".png", ".svg", ".pdf", ".html")

_COLOURS = ("#0f6e84", "#c7682a", "#6a4c93", "#4c8c3f", "#a63d62", "#7a7a7a")
_OF_GROUP = dict(
    zip((*GROUPS, "activations"), ("#8a9ba1", "#c7682a", "#0f6e84", "#b9a44c"), strict=True)
)


def require(path: Path) -> None:
    """Refuse a picture that could not be written.

    Raises:
        InputError: another suffix, no folder to write it in, or matplotlib is missing.
    """
    if path.suffix not in _SUFFIXES:
        raise InputError(f"--plot must end in {', '.join(_SUFFIXES)}, got {path.name!r}.")
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(f"--plot must name a file in a folder that exists, got {str(path)!r}.")
    if path.suffix != ".html" and find_spec("matplotlib") is None:
        raise InputError(
            "--plot needs matplotlib for pictures: pip install 'interlace[plot]', or end the name "
            "in .html."
        )


def save(plans: Sequence[Plan], path: Path) -> None:
    """Draw several plans of one question, whole or not at all.

    Args:
        plans: the model that was asked about, then those beside it.
        path: its suffix says which kind.

    Raises:
        InputError: the file cannot be written.
    """
    part = path.with_name(f"{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        if path.suffix == ".html":
            part.write_text(page(plans), encoding="utf-8")
        else:
            _draw(plans, part)
        part.replace(path)
    except OSError as error:
        raise InputError(f"--plot must name a file that can be written, got {error}.") from None
    finally:
        part.unlink(missing_ok=True)


def contexts(context: int) -> list[int]:
    """Contexts of a curve: from 1,024 on, a quarter more each time, to four times the one asked."""
    last = max(4 * context, 4096)
    found = [1024.0]
    while found[-1] * 1.25 < last:
        found.append(found[-1] * 1.25)
    return sorted({*(int(n) for n in found), last, *([context] if context > 1024 else [])})


def _draw(plans: Sequence[Plan], path: Path) -> None:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timed = all(plan.machine is not None for plan in plans)
    columns = 2 if timed else 1
    figure = Figure(figsize=(5.6 * columns, 5.2 + 0.35 * len(plans)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, columns, height_ratios=[3.4, 0.5 + 0.35 * len(plans)])
    points = contexts(max(plan.request.context for plan in plans))
    at = [[plan.with_request(context=n) for n in points] for plan in plans]
    memory = figure.add_subplot(grid[0, 0])
    _curves(memory, plans, points, [[float(one.total_bytes) for one in row] for row in at])
    _axes(memory, "bytes of one device", points, show_size)
    if plans[0].budget is not None:
        memory.axhline(plans[0].budget, color="#b3312c", linestyle="--", linewidth=1.2)
        memory.annotate(
            f"the device: {show_size(plans[0].budget)}",
            (points[0], plans[0].budget),
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=8,
            color="#b3312c",
        )
    if timed:
        time = figure.add_subplot(grid[0, 1])
        _curves(time, plans, points, [[one.seconds_per_token for one in row] for row in at])
        _axes(time, "a decoding step", points, show_seconds)
    _bars(figure.add_subplot(grid[1, :]), plans)
    ask, machine = plans[0].request, plans[0].machine
    title = f"{show_count(ask.context)} tokens, batch {ask.batch}"
    title += f", {ask.devices} devices" if ask.devices > 1 else ""
    figure.suptitle(title if machine is None else f"{title}: {machine.title}", fontsize=10)
    notes = understood_in_part(plans)
    if notes:
        figure.supxlabel(
            "\n".join(fill(note, 130) for note in notes), fontsize=7, x=0.01, ha="left"
        )
    # the same plan gives the same file
    with matplotlib.rc_context({"svg.hashsalt": "interlace"}):
        date = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, dpi=130, metadata=date)


def _curves(
    axes: Any, plans: Sequence[Plan], points: Sequence[int], values: Sequence[Sequence[float]]
) -> None:
    for number, (plan, row) in enumerate(zip(plans, values, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        axes.plot(points, row, color=colour, label=plan.description.name)
    axes.axvline(plans[0].request.context, color="#888888", linestyle=":", linewidth=1)


def _axes(axes: Any, name: str, points: Sequence[int], show: Any) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(points[0], points[-1])
    axes.set_xlabel("tokens of each sequence")
    axes.set_ylabel(name)
    axes.xaxis.set_major_formatter(lambda n, _: show_count(int(n)))
    axes.yaxis.set_major_formatter(lambda v, _: show(v))
    axes.yaxis.set_minor_formatter(lambda v, _: "")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=8, loc="upper left")


def show_size(size: float | int) -> str:
    """Bytes at a tick of an axis, decimal."""
    return show_bytes(int(size), binary=False)


def _bars(axes: Any, plans: Sequence[Plan]) -> None:
    names = [plan.description.name for plan in plans]
    left = [0] * len(plans)
    for group, colour in _OF_GROUP.items():
        sizes = [
            max(plan.activations.values()) if group == "activations" else plan.nbytes(group)
            for plan in plans
        ]
        axes.barh(names, sizes, left=left, color=colour, label=group)
        left = [before + size for before, size in zip(left, sizes, strict=True)]
    if plans[0].budget is not None:
        axes.axvline(plans[0].budget, color="#b3312c", linestyle="--", linewidth=1.2)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda v, _: show_size(v))
    axes.set_xlabel("bytes of one device")
    axes.legend(fontsize=8, loc="lower right")

"""A plan as text for a terminal. Every size is decimal and binary, labelled."""

from collections.abc import Iterator, Sequence

from interlace.planner.memory import Item
from interlace.planner.plan import GROUPS, Plan
from interlace.planner.roofline import Part, seconds
from interlace.planner.units import show_bytes, show_count, show_seconds

__all__ = ["comparison", "report", "understood_in_part"]

_SMALL = 0.001
"""Share of a group below which lines are joined into one."""


def report(plan: Plan, wanted: str | None = None) -> str:
    """The plan, line by line.

    Args:
        plan: what to show.
        wanted: `context` or `batch`: say the largest that fits.
    """
    of, ask = plan.description, plan.request
    layers = sum(count for _, count in of.mixers)
    active = (
        "" if of.active_parameters == of.parameters else f", {_many(of.active_parameters)} active"
    )
    lines = [
        f"{of.name}: {of.layers}, {layers} layers that mix tokens",
        f"{_many(of.parameters)} parameters{active}",
        "",
        *_memory(plan),
    ]
    if wanted is not None:
        lines += ["", _largest(plan, wanted)]
    if plan.machine is not None:
        lines += ["", *_time(plan)]
    lines.append("")
    if plan.not_run_here:
        lines.append(f"not run here: {'; '.join(plan.not_run_here)}")
    if of.max_context is not None and ask.context > of.max_context:
        lines.append(f"beyond the {of.max_context:,} tokens that the config names")
    lines += [f"note: {note}" for note in of.notes]
    return "\n".join(lines).rstrip()


def _memory(plan: Plan) -> Iterator[str]:
    ask = plan.request
    rows = f"{ask.batch:,} sequence{'s' if ask.batch > 1 else ''} of {ask.context:,} tokens"
    where = "Memory" if ask.devices == 1 else f"Memory of each of {ask.devices} devices"
    if ask.groups > 1:
        rows += f" for each of {ask.groups} groups"
    yield f"{where}, {rows}"
    yield ""
    table: list[tuple[str, str, str]] = []
    for group in GROUPS:
        items = [item for item in plan.items if item.group == group]
        note = {
            "cache": f"{plan.bytes_per_token:,} B for one more token of a sequence",
            "state": "the same at any length",
        }.get(group, "")
        size = plan.nbytes(group)
        table.append((f"  {group}", show_bytes(size), note if items else "none"))
        table += _lines(items, ask.batch, ask.context, size)
    larger = max(plan.activations, key=lambda name: plan.activations[name])
    kind = {
        "decode": "a decoding step",
        "prefill": f"a prefill chunk of {min(ask.prefill_chunk, ask.context):,}",
    }
    for name, size in plan.activations.items():
        mark = "" if name == larger else "not at the same time"
        if plan.description.config is None:
            mark = f"{mark}, an estimate".removeprefix(", ")
        table.append((f"  activations of {kind[name]}", show_bytes(size), mark))
    verdict = ""
    if plan.budget is not None:
        verdict = f"{'fits' if plan.fits else 'does not fit'} into {show_bytes(plan.budget)}"
    table.append(("  total", show_bytes(plan.total_bytes), verdict))
    yield from _aligned(table)


def _lines(
    items: Sequence[Item], batch: int, context: int, total: int
) -> Iterator[tuple[str, str, str]]:
    """A group's lines, the smallest of them joined."""
    rest = 0
    for item in sorted(items, key=lambda item: -item.nbytes(batch, context)):
        size = item.nbytes(batch, context)
        if size < _SMALL * total and item.group == "weights":
            rest += size
        else:
            yield f"    {item.name}", show_bytes(size), item.note
    if rest:
        yield "    the rest", show_bytes(rest), ""


def _largest(plan: Plan, wanted: str) -> str:
    budget = show_bytes(plan.budget or 0)
    if wanted == "context":
        found = plan.longest_context()
        what = f"longest context at batch {plan.request.batch:,}"
        unit = "tokens"
    else:
        found = plan.largest_batch()
        what = f"largest batch at {plan.request.context:,} tokens"
        unit = "sequences"
    number = "no limit" if found is None else f"{found:,} {unit}"
    return f"{what}: {number} in {budget}"


def _time(plan: Plan) -> Iterator[str]:
    machine, ask = plan.machine, plan.request
    assert machine is not None
    decode, prefill = plan.decode(), plan.prefill()
    yield f"Time on {machine.title}" + (f", {ask.devices} of them" if ask.devices > 1 else "")
    yield ""
    step = f"{plan.tokens_per_second:,.1f} tokens/s"
    read = ask.context * ask.batch * ask.groups / seconds(prefill)
    chunk = min(ask.prefill_chunk, ask.context)
    table = [
        ("  a decoding step", show_seconds(seconds(decode)), step),
        *_parts(decode),
        (
            "  prefill",
            show_seconds(seconds(prefill)),
            f"{read:,.0f} tokens/s in chunks of {chunk:,}",
        ),
        *_parts(prefill),
    ]
    yield from _aligned(table)
    for part in plan.not_counted:
        yield f"  {part} is not counted"


def _parts(parts: Sequence[Part]) -> Iterator[tuple[str, str, str]]:
    bounds = {"memory": "bound by memory", "rate": "bound by the matrix rate", "calls": ""}
    for part in sorted(parts, key=lambda part: -part.seconds):
        yield f"    {part.name}", show_seconds(part.seconds), bounds[part.bound]


def _aligned(table: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    left = max(len(row[0]) for row in table)
    middle = max(len(row[1]) for row in table)
    for name, value, note in table:
        yield f"{name:<{left}}  {value:>{middle}}  {note}".rstrip()


def _many(count: int) -> str:
    for letter, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:,.2f} {letter}"
    return f"{count:,}"


# -- several models


def comparison(plans: Sequence[Plan]) -> str:
    """Several plans of one question side by side, then memory and time by context."""
    timed = all(plan.machine is not None for plan in plans)
    head = ["", "B/token", "cache", "state", "weights", "total", *(["a step"] if timed else [])]
    rows = [head]
    for plan in plans:
        row = [plan.description.name, f"{plan.bytes_per_token:,}"]
        row += [_short(plan.nbytes(group)) for group in ("cache", "state", "weights")]
        row.append(_short(plan.total_bytes))
        if timed:
            row.append(show_seconds(plan.seconds_per_token))
        rows.append(row)
    parts = [_grid(rows), "", "Cache and state of one sequence, by tokens", "", _by_context(plans)]
    if timed:
        parts += ["", "Time of a decoding step, by tokens", "", _by_context(plans, True)]
    # the first one's stand below its own account
    notes = understood_in_part(plans[1:])
    return "\n".join([*parts, *(["", *notes] if notes else [])])


def understood_in_part(plans: Sequence[Plan]) -> list[str]:
    """What of each model is not counted or was assumed, with the model's name before it."""
    return [f"note on {p.description.name}: {n}" for p in plans for n in p.description.notes]


def contexts(context: int) -> list[int]:
    """Contexts of a curve: powers of four from 1Ki up to the one asked for, which is the last."""
    found = [4**k for k in range(5, 20) if 4**k < context]
    return [*found, context]


def _by_context(plans: Sequence[Plan], timed: bool = False) -> str:
    points = contexts(max(plan.request.context for plan in plans))[-6:]
    rows = [["", *map(show_count, points)]]
    for plan in plans:
        at = [plan.with_request(context=point) for point in points]
        if timed:
            cells = [show_seconds(one.seconds_per_token) for one in at]
        else:
            cells = [_short(one.bytes_per_sequence) for one in at]
        rows.append([plan.description.name, *cells])
    return _grid(rows)


def _short(size: int) -> str:
    """Decimal alone, in a table whose heading cannot hold both: the unit says which it is."""
    return show_bytes(size, binary=False)


def _grid(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  "
        + "  ".join(
            f"{cell:>{w}}" if i else f"{cell:<{w}}"
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )

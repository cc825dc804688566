"""The whole check, in order: references, layer by layer, logits, saved and loaded."""

import time
from collections.abc import Callable, Sequence

import torch

from interlace.check.findings import Finding, Report
from interlace.check.parts import Judge, Rows, check_layer
from interlace.check.recorded import Recording
from interlace.check.reference import Reference
from interlace.check.whole import Whole
from interlace.errors import InputError
from interlace.models import HybridLM

__all__ = ["check_model"]


@torch.no_grad()
def check_model(
    lm: HybridLM,
    rows: Sequence[Sequence[int]],
    *,
    saved: bool = True,
    recording: Recording | None = None,
    fail_fast: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Measure every way of computing `lm` against float64.

    Args:
        lm: the model, in the dtype in which it is to be trusted; it is not changed.
        rows: token ids, of different lengths; the longest first, and the rows of `recording` before
            others.
        saved: also save it to a temporary folder and load it again.
        recording: logits of the first rows, computed elsewhere.
        fail_fast: end at the first layer that is outside its bounds.
        progress: called with the steps done and their number.

    Raises:
        InputError: no rows, an empty one, or an id out of range.
    """
    began = time.perf_counter()
    ids = _check_rows(lm, rows)
    dtype = lm.lm_head.weight.dtype
    weights = lm.state_dict()
    exact, plain = Reference(lm.config, weights), Reference(lm.config, weights, dtype)
    other = Reference(lm.config, weights, dtype, backwards=True)
    report = Report(str(dtype).removeprefix("torch."), [len(row) for row in ids])
    layers = lm.config.num_hidden_layers
    steps, done = len(ids) + layers + 3, 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, steps)

    whole = Whole.trace(lm, ids, exact, plain, other, step)
    report.undecided = whole.undecided
    streams = whole.streams()
    rows_on_their_way = [exact.start(row) for row in ids]
    for layer in range(layers):
        findings = check_layer(lm, layer, rows_on_their_way, exact, plain, other)
        report.findings += [*findings, streams[layer]()]
        step()
        if fail_fast and not report.ok:
            report.seconds = time.perf_counter() - began
            return report
    ends = [row.x.to(dtype) for row in rows_on_their_way]
    report.findings += _ending(lm, ends, exact, plain)
    report.findings += [judge() for judge in whole.logits()]
    step()
    if saved:
        report.findings += whole.saved()
    step()
    if recording is not None:
        report.findings.append(whole.recorded(recording.rows, recording.dtype))
    step()
    report.seconds = time.perf_counter() - began
    return report


def _ending(lm: HybridLM, stream: Rows, exact: Reference, plain: Reference) -> list[Finding]:
    """Final norm and head, each on inputs of the reference."""
    name = "model.norm"
    norm = Judge(
        None,
        name,
        "final norm",
        [exact.norm(x.double(), name) for x in stream],
        [plain.norm(x, name) for x in stream],
        plain.dtype,
    )
    inputs = [x.to(plain.dtype) for x in norm.exact]
    head = Judge(
        None,
        "lm_head",
        "head",
        [exact.head(x.double()) for x in inputs],
        [plain.head(x) for x in inputs],
        plain.dtype,
    )
    return [
        norm.judge("one call", lambda: torch.cat([lm.model.norm(x) for x in stream])),
        head.judge("one call", lambda: torch.cat([lm.lm_head(x) for x in inputs])),
    ]


def _check_rows(lm: HybridLM, rows: Sequence[Sequence[int]]) -> Rows:
    if not rows or not all(len(row) for row in rows):
        raise InputError("a check needs rows of at least one token each; give some ids.")
    device = lm.lm_head.weight.device
    ids = [torch.tensor(row, dtype=torch.long, device=device) for row in rows]
    low, high = min(int(row.min()) for row in ids), max(int(row.max()) for row in ids)
    if low < 0 or high >= lm.config.vocab_size:
        raise InputError(
            f"token ids must lie in 0..{lm.config.vocab_size - 1}, got {low if low < 0 else high}; "
            "they are of another model's vocabulary."
        )
    return ids

"""What a check found: one finding for each way of computing each part, and the report of all."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Finding", "Report"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One way of computing one part, beside float64.

    Args:
        layer: 0-based layer, or None for the whole model.
        part: what was computed: the module's published name, `stream` for the residual stream after
            the layer, `logits`, or `weights`.
        kind: the same in words, such as "Gated MLA".
        way: how, such as "absorbed".
        error: against float64; infinite where something is not finite, has another shape, or was
            not computed at all.
        bound: the largest error that is allowed.
        plain: error of the plain way in the same precision, from which the bound comes.
        judged: numbers that were compared; 0 where rounding decides which experts are chosen before
            the first token, so that nothing could be.
        note: why there is no result, where there is none.
    """

    layer: int | None
    part: str
    kind: str
    way: str
    error: float
    bound: float
    plain: float
    judged: int
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether the error is within the bound."""
        return self.error <= self.bound

    @property
    def place(self) -> str:
        """Layer and part in words."""
        return self.kind if self.layer is None else f"layer {self.layer}, {self.kind}"

    def describe(self) -> str:
        """What is wrong, in one sentence."""
        if self.note:
            return f"{self.place}, {self.way}: {self.note}"
        return (
            f"{self.place}, {self.way}: the error {self.error:.2g} must be at most {self.bound:.2g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it; an error without bounds is null."""
        return {
            "layer": self.layer,
            "part": self.part,
            "kind": self.kind,
            "way": self.way,
            "error": self.error if self.error < float("inf") else None,
            "bound": self.bound,
            "plain_error": self.plain if self.plain < float("inf") else None,
            "judged": self.judged,
            "ok": self.ok,
            **({"note": self.note} if self.note else {}),
        }


@dataclass(slots=True)
class Report:
    """A whole check in one precision.

    Args:
        dtype: of the weights that were run.
        lengths: tokens of each row.
        findings: layer by layer, then the whole model.
        undecided: tokens, over all rows, whose experts rounding could choose otherwise, and those
            behind them: left out where the whole model is compared.
        seconds: wall time.
    """

    dtype: str
    lengths: list[int]
    findings: list[Finding] = field(default_factory=list)
    undecided: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every finding is."""
        return all(finding.ok for finding in self.findings)

    @property
    def first_bad(self) -> Finding | None:
        """The first finding that is not, in the order of the layers."""
        return next((finding for finding in self.findings if not finding.ok), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON writes it."""
        bad = self.first_bad
        return {
            "ok": self.ok,
            "first_bad": None if bad is None else bad.to_dict(),
            "dtype": self.dtype,
            "tokens": self.lengths,
            "undecided_tokens": self.undecided,
            "seconds": self.seconds,
            "findings": [finding.to_dict() for finding in self.findings],
        }

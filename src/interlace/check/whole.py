"""The whole model: the stream after each layer, and the logits of every way of calling it.

Here errors travel from layer to layer, in the plain way as in the fast ones, and the bound grows
with the plain way's. What cannot be bounded so is a choice of experts that rounding may turn over:
a token whose margin is within what rounding does to the scores is undecided, and so is all that
comes after it in its row. Those are left out and counted; where only a few tokens are left, their
plain error is no measure of anything, and nothing is judged.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from interlace.check.findings import Finding
from interlace.check.measure import bound, error
from interlace.check.parts import Judge, Rows, cuts, padded_rows, row_offsets
from interlace.check.reference import Reference, Trace
from interlace.checkpoints.reader import load
from interlace.checkpoints.writer import save
from interlace.models import HybridLM, load_cache
from interlace.shapes import Tensor

__all__ = ["Whole"]

# Rounding of a score that can turn a choice, over what the plain way shows of it.
_MARGIN = 4.0
# fewer decided tokens than this, of all rows together, are not judged
_ENOUGH = 16
# what float32 logits of another implementation may differ by (docs/numerics.md)
_ELSEWHERE = 1e-4


@dataclass(slots=True)
class Whole:
    """The reference's traces of all rows beside the model.

    Args:
        lm: the model.
        rows: token ids `[T]`, the longest first.
        exact: float64 trace of each row.
        plain: trace of each row the plain way, in the model's dtype.
        other: the same with every product summed backwards: rounding that has travelled through all
            layers is too chancy to be known from one sample.
        decided: for each row `[L, T]`, whether the stream after a layer can be compared.
    """

    lm: HybridLM
    rows: Rows
    exact: list[Trace]
    plain: list[Trace]
    other: list[Trace]
    decided: Rows

    @classmethod
    def trace(
        cls,
        lm: HybridLM,
        rows: Rows,
        exact: Reference,
        plain: Reference,
        other: Reference,
        step: Callable[[], None],
    ) -> "Whole":
        """Run the three references over all rows; `step` is called after each row."""
        exactly, plainly, otherwise = [], [], []
        for row in rows:
            exactly.append(exact.forward(row))
            plainly.append(plain.forward(row))
            otherwise.append(other.forward(row))
            step()
        pairs = zip(exactly, plainly, strict=True)
        decided = [_decided(a, b) for a, b in pairs]
        left = sum(mask.sum(1) for mask in decided)  # [L]
        too_few = left < min(_ENOUGH, sum(len(row) for row in rows))
        for mask in decided:
            mask[too_few] = False
        return cls(lm, rows, exactly, plainly, otherwise, decided)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return self.lm.lm_head.weight.dtype

    @property
    def undecided(self) -> int:
        """Tokens left out where logits are compared."""
        return sum(int((~mask[-1]).sum()) for mask in self.decided)

    def streams(self) -> list[Callable[[], Finding]]:
        """For each layer, what judges the residual stream after it, in one call per row."""
        layers = self.lm.model.layers
        seen: list[list[Tensor | Exception]] = [[] for _ in layers]

        def keep(layer: int) -> Callable[..., None]:
            return lambda module, args, out: seen[layer].append(_read(out)[0])

        hooks = [block.register_forward_hook(keep(i)) for i, block in enumerate(layers)]
        try:
            for number, row in enumerate(self.rows, 1):
                try:
                    self.lm(row[None])
                except (MemoryError, torch.OutOfMemoryError):
                    raise
                except Exception as mistake:  # told by the layer that it stopped in
                    for streams in seen:
                        streams += [mistake] * (number - len(streams))
        finally:
            for hook in hooks:
                hook.remove()

        def stream(layer: int) -> Tensor:
            for x in seen[layer]:
                if isinstance(x, Exception):
                    raise x
            pairs = zip(cast(Rows, seen[layer]), self.decided, strict=True)
            return torch.cat([x[mask[layer]] for x, mask in pairs])

        def finding(layer: int) -> Callable[[], Finding]:
            check = Judge(
                layer,
                "stream",
                "stream after the layer",
                self._kept([trace.stream[layer] for trace in self.exact], layer),
                self._kept([trace.stream[layer] for trace in self.plain], layer),
                self.dtype,
                self._kept([trace.stream[layer] for trace in self.other], layer),
            )
            return lambda: check.judge("one call", lambda: stream(layer))

        return [finding(layer) for layer in range(len(layers))]

    def logits(self) -> list[Callable[[], Finding]]:
        """What judges the logits of each way of calling the model."""
        lm, rows, first = self.lm, self.rows, slice(0, 1)
        tokens = len(rows[0])

        def one_call(model: HybridLM) -> Rows:
            return [model(row[None])[0] for row in rows]

        def in_calls(*lengths: int) -> Rows:
            cache = lm.new_cache(1)
            parts = rows[0][None].split(list(lengths), 1)
            return [torch.cat([lm(part, cache=cache)[0] for part in parts])]

        def padded() -> Rows:
            batch, lengths = padded_rows(rows)
            y = lm(batch, lengths=lengths)
            return [y[b, : len(row)] for b, row in enumerate(rows)]

        def padded_left() -> Rows:
            tokens = max(map(len, rows))
            batch = torch.stack([nn.functional.pad(row, (tokens - len(row), 0)) for row in rows])
            y = lm(batch, lengths=[len(row) for row in rows], padding="left")
            return [y[b, tokens - len(row) :] for b, row in enumerate(rows)]

        def padded_then_steps() -> Rows:
            steps = 3 if len(rows[-1]) > 3 else 0
            cache = lm.new_cache(len(rows))
            batch, lengths = padded_rows([row[: len(row) - steps] for row in rows])
            y = lm(batch, cache=cache, lengths=lengths)
            out = [[y[b, : int(n)]] for b, n in enumerate(lengths)]
            for step in range(steps, 0, -1):
                y = lm(torch.stack([row[-step : len(row) - step + 1] for row in rows]), cache=cache)
                for b in range(len(rows)):
                    out[b].append(y[b])
            return [torch.cat(parts) for parts in out]

        def packed(cached: bool) -> Rows:
            cache = lm.new_cache(len(rows)) if cached else None
            y = lm(torch.cat(rows)[None], cache=cache, cu_seqlens=row_offsets(rows))[0]
            return list(y.split([len(row) for row in rows]))

        ways: list[tuple[str, Callable[[], Rows], slice]] = [
            ("one call", lambda: one_call(lm), slice(None)),
            ("token by token", lambda: in_calls(*[1] * tokens), first),
            *(
                (f"cut at {cut}", lambda cut=cut: in_calls(cut, tokens - cut), first)
                for cut in cuts(tokens)
            ),
            ("padded", padded, slice(None)),
            ("padded left", padded_left, slice(None)),
            ("padded, cached", padded_then_steps, slice(None)),
            ("packed", lambda: packed(cached=False), slice(None)),
            ("packed, cached", lambda: packed(cached=True), slice(None)),
        ]
        return [lambda way=way: self._judge_logits(*way) for way in ways]  # type: ignore[misc]

    def saved(self) -> list[Finding]:
        """Save model and cache, load both, and compare weights to the bit, logits to rounding."""
        with tempfile.TemporaryDirectory(prefix="interlace-check-") as folder:
            path = Path(folder) / "model"
            save(self.lm, path)
            again = load(path, dtype=self.dtype).requires_grad_(False)
            logits = self._judge_logits(
                "saved = loaded", lambda: [again(row[None])[0] for row in self.rows], slice(None)
            )
            cache = self._judge_logits(
                "cache saved", lambda: [self._continued(Path(folder) / "cache")], slice(0, 1)
            )
            theirs = again.state_dict()
            worst = ("", 0.0)
            for name, value in self.lm.state_dict().items():
                apart = _apart(value, theirs.get(name))
                worst = max(worst, (name, apart), key=lambda pair: pair[1])
        note = f"{worst[0]} must come back to the bit, but does not" if worst[1] else ""
        weights = Finding(
            None, "weights", "weights", "saved = loaded", worst[1], 0.0, 0.0, len(theirs), note
        )
        return [weights, logits, cache]

    def _continued(self, path: Path) -> Tensor:
        """Logits of the first row, its cache saved and loaded half-way."""
        row = self.rows[0]
        cut = (len(row) + 1) // 2
        cache = self.lm.new_cache(1)
        parts = [self.lm(row[None, :cut], cache=cache)[0]]
        cache.save(path)
        if cut < len(row):
            parts.append(self.lm(row[None, cut:], cache=load_cache(path, self.lm))[0])
        return torch.cat(parts)

    def recorded(self, logits: Rows, dtype: torch.dtype) -> Finding:
        """Judge logits of the first rows that something else computed in `dtype`."""
        count = len(logits)
        weights = self.lm.state_dict()
        reference = Reference(self.lm.config, weights, dtype)
        masks = [mask[-1] for mask in self.decided[:count]]
        exact = [trace.logits[m] for trace, m in zip(self.exact, masks, strict=False)]
        plain = [reference.forward(row).logits[m] for row, m in zip(self.rows, masks, strict=False)]
        theirs = [value[m] for value, m in zip(logits, masks, strict=True)]
        plain_error = error(torch.cat(plain), torch.cat(exact))
        return Finding(
            None,
            "logits",
            "logits",
            "recorded elsewhere",
            error(torch.cat(theirs), torch.cat(exact)),
            max(_ELSEWHERE, bound(plain_error, dtype)),
            plain_error,
            sum(value.numel() for value in exact),
        )

    def _judge_logits(self, way: str, run: Callable[[], Rows], rows: slice) -> Finding:
        masks = [mask[-1] for mask in self.decided[rows]]
        check = Judge(
            None,
            "logits",
            "logits",
            self._kept([trace.logits for trace in self.exact]),
            self._kept([trace.logits for trace in self.plain]),
            self.dtype,
            self._kept([trace.logits for trace in self.other]),
        )

        def kept() -> Tensor:
            return torch.cat([x[mask] for x, mask in zip(run(), masks, strict=True)])

        return check.judge(way, kept, rows)

    def _kept(self, rows: Rows, layer: int = -1) -> Rows:
        return [x[mask[layer]] for x, mask in zip(rows, self.decided, strict=True)]


def _read(out: object) -> Tensor:
    """The stream that a layer hands on; of several, the mixture that the next sublayer reads."""
    return out if isinstance(out, Tensor) else cast(Tensor, cast(Any, out).x)


def _apart(value: Tensor, other: Tensor | None) -> float:
    """0 where both are equal to the bit, else the largest difference."""
    if other is None or other.shape != value.shape or other.dtype != value.dtype:
        return float("inf")
    if torch.equal(value, other):
        return 0.0
    return max(float((value.double() - other.double()).abs().max()), 5e-324)


def _decided(exact: Trace, plain: Trace) -> Tensor:
    """For each layer and token, whether rounding leaves all choices up to there as they are."""
    tokens = len(exact.logits)
    decided = torch.ones(tokens, dtype=torch.bool, device=exact.logits.device)
    rows = []
    for ours, theirs in zip(exact.choices, plain.choices, strict=True):
        if ours is not None and theirs is not None and bool(decided.any()):
            moved = float((ours.scores - theirs.scores)[decided].abs().max())
            rounding = _MARGIN * max(moved, float(torch.finfo(theirs.scores.dtype).eps))
            # a later token reads what an earlier one wrote
            decided = (decided & (ours.margin > rounding)).cummin(0).values
        rows.append(decided)
    return torch.stack(rows)

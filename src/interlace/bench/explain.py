"""`--explain`: which way of computing each operator of a model takes, and why the others do not.

The answers come from the records that choose when the model runs, here for a model in bf16 on the
CPU; no tensor is made.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from interlace.config import HybridConfig
from interlace.layers.linear import FEW
from interlace.layers.step import STEP_BACKENDS, StepCall
from interlace.ops.attention import LATENT_BACKENDS, LatentCall
from interlace.ops.conv import CONV_BACKENDS, ConvCall
from interlace.ops.delta_rule import GATE_BACKENDS, KDA_BACKENDS, GateCall, KDACall
from interlace.ops.dispatch import Backend, explain
from interlace.ops.linear import LINEAR_BACKENDS, LinearCall
from interlace.ops.native import absence
from interlace.ops.norm import NORM_BACKENDS, NormCall

__all__ = ["CALLS", "Row", "explain_model", "table"]

CALLS = {"decode": 1, "short prompt": 16, "prefill": 512}
"""Tokens of the calls that are explained; training is one more."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way of one operator in one kind of call.

    Args:
        operator: what is computed.
        call: in which call.
        way: name of the record.
        chosen: whether it is the one that runs.
        reason: why it is not, or a note where there is no other.
    """

    operator: str
    call: str
    way: str
    chosen: bool
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def explain_model(config: HybridConfig, extra: Sequence[int] = ()) -> list[Row]:
    """Every way of every operator that the model has.

    Args:
        config: the model.
        extra: further numbers of tokens of a call.
    """
    calls = CALLS | {f"{n:,} tokens": n for n in extra}
    rows: list[Row] = []
    if config.num_global_layers:
        for call, tokens in calls.items():
            asked = LatentCall(tokens, native=absence())
            rows += _rows("attention, cached", call, LATENT_BACKENDS, asked)
        rows.append(_only("attention, no cache", "attention.expanded", "it has a backward"))
    if config.num_kda_layers:
        for call, tokens in calls.items():
            rows += _rows("delta rule", call, KDA_BACKENDS, KDACall(tokens, native=absence()))
        learning = KDACall(CALLS["prefill"], learns=True, native=absence())
        rows += _rows("delta rule", "training", KDA_BACKENDS, learning)
        for call, tokens in calls.items():
            rows += _around(call, tokens)
    for call, tokens in calls.items():
        if tokens <= FEW:
            step = StepCall(tokens, native=absence())
            rows += _rows("step of a KDA layer or a feed-forward", call, STEP_BACKENDS, step)
        product = LinearCall(tokens, native=absence())
        rows += _rows("products with weights", call, LINEAR_BACKENDS, product)
    rows += _rows("head, one token", "any", LINEAR_BACKENDS, LinearCall(1, native=absence()))
    rows += _rows("norms", "any", NORM_BACKENDS, NormCall(native=absence()))
    rows.append(Row("norms", "training", "norm.fused", True, "it has a backward"))
    if config.num_moe_layers < config.num_hidden_layers:
        rows.append(
            _only("feed-forward", "mlp.swiglu" if config.hidden_act == "silu" else "mlp.situ_glu")
        )
    if config.num_moe_layers:
        rows.append(_only("experts", "moe.loop"))
    if config.attn_res_block_size is not None:
        rows.append(_only("attention residuals", "residual.two_phase"))
    return rows


def _around(call: str, tokens: int) -> list[Row]:
    """What stands around the delta rule."""
    if tokens > FEW:
        why = f"above {FEW} tokens the only way"
        return [
            Row("convolution", call, "conv.channels_last", True, why),
            Row("decay and beta", call, "gate.torch", True, why),
        ]
    return [
        *_rows("convolution", call, CONV_BACKENDS, ConvCall(native=absence())),
        *_rows("decay and beta", call, GATE_BACKENDS, GateCall(native=absence())),
    ]


def table(rows: Sequence[Row]) -> str:
    """The rows as a table of Markdown."""
    lines = ["| operator | call | way | | why not |", "|---|---|---|---|---|"]
    for row in rows:
        mark = "runs" if row.chosen else ""
        lines.append(f"| {row.operator} | {row.call} | `{row.way}` | {mark} | {row.reason} |")
    return "\n".join(lines)


def _rows(operator: str, call: str, records: Sequence[Backend], asked: Any) -> list[Row]:
    reasons = explain(records, asked)
    # the rule of `choose`, which would also announce the way as used
    taken = next(name for name, reason in reasons if reason is None)
    return [
        Row(operator, call, name, name == taken, reason or _beaten(name, taken))
        for name, reason in reasons
    ]


def _beaten(name: str, taken: str) -> str:
    return "" if name == taken else f"{taken} comes first"


def _only(operator: str, way: str, note: str = "") -> Row:
    return Row(operator, "any", way, True, f"the only way{': ' + note if note else ''}")

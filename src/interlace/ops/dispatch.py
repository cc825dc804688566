"""Which way of an operator takes a call: one record per way, and one function that chooses.

A record says by itself why it cannot take a call (`refuses`), and why another is the faster way for
it (`passes`). `auto` takes the first that does neither; a way asked for by name runs unless it
refuses, and never falls back. The choice is logged once per operator and way, and `explain` returns
the reasons.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from interlace.errors import BackendUnavailable

__all__ = ["Backend", "choose", "explain"]

_log = logging.getLogger("interlace")


def _never(_: Any) -> str | None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One way to compute an operator.

    Args:
        name: what a caller asks for, as `kda.chunk`; the part before the dot names the operator.
        refuses: why it cannot take this call, all reasons in one string, or None.
        run: the function itself.
        passes: why another way should take this call although this one could, or None. Only `auto`
            listens to it.
    """

    name: str
    refuses: Callable[[Any], str | None]
    run: Callable[..., Any]
    passes: Callable[[Any], str | None] = _never

    def unwilling(self, call: Any) -> str | None:
        """Why `auto` does not take this way for `call`, or None."""
        reason = self.refuses(call)
        return self.passes(call) if reason is None else reason


# names already announced; it changes what is logged and never what is chosen
_announced: set[str] = set()


def choose(records: Sequence[Backend], call: Any, backend: str = "auto") -> Backend:
    """The record that takes `call`.

    Args:
        records: in order of preference.
        call: what `refuses` looks at.
        backend: a record's name, or "auto" for the first that neither refuses nor passes.

    Raises:
        BackendUnavailable: the named one refuses or does not exist, or none is willing.
    """
    if backend == "auto":
        return _first_willing(records, call)
    for record in records:
        if record.name == backend:
            reason = record.refuses(call)
            if reason is not None:
                raise BackendUnavailable(
                    f"{backend} cannot take this call: {reason}; meet this, or pass backend='auto'."
                )
            return record
    names = ", ".join(record.name for record in records)
    raise BackendUnavailable(f"backend must be auto or one of {names}, got {backend!r}.")


def explain(records: Sequence[Backend], call: Any) -> list[tuple[str, str | None]]:
    """Every record's name with the reason why `auto` leaves it, or None where it would take it."""
    return [(record.name, record.unwilling(call)) for record in records]


def _first_willing(records: Sequence[Backend], call: Any) -> Backend:
    refused: list[str] = []
    for record in records:
        reason = record.unwilling(call)
        if reason is None:
            if record.name not in _announced:
                _announced.add(record.name)
                _log.info("using %s%s", record.name, _because(refused))
            return record
        refused.append(f"{record.name}: {reason}")
    raise BackendUnavailable(f"no backend can take this call: {'; '.join(refused)}; change it.")


def _because(refused: list[str]) -> str:
    return f" ({'; '.join(refused)})" if refused else ""

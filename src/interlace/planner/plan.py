"""`plan`: what a context costs before you start, and what fits.

config.json -> description -> items (bytes) ----.
                              roofline (seconds) +-> Plan -> text, JSON, pictures
                              what fits ---------'
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from interlace.config import HybridConfig
from interlace.config.sizes import checkpoint_bytes
from interlace.errors import InputError
from interlace.planner import memory, roofline
from interlace.planner.description import Description
from interlace.planner.hardware import Hardware, hardware
from interlace.planner.request import Request
from interlace.planner.source import find
from interlace.planner.units import MOST, parse_bytes, parse_count

__all__ = ["GROUPS", "Plan", "plan", "plan_for"]

GROUPS = ("weights", "cache", "state")
"""Groups of items, in the order of a report."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked, and every number that follows; all bytes are those of one device.

    Args:
        description: the model.
        request: the question.
        items: weights, cache and state, line by line.
        activations: bytes of a `decode` step and of a `prefill` chunk.
        machine: the device, or None where no time was asked for.
        budget: bytes that one device has, or None.
    """

    description: Description
    request: Request
    items: tuple[memory.Item, ...]
    activations: dict[str, int]
    machine: Hardware | None
    budget: int | None

    # -- bytes

    def nbytes(self, group: str) -> int:
        """Bytes of one of `GROUPS`."""
        return _held(self.items, self.request, group)

    @property
    def total_bytes(self) -> int:
        """Weights, cache, state, and the larger of the two kinds of activations."""
        return sum(self.nbytes(group) for group in GROUPS) + max(self.activations.values())

    @property
    def bytes_per_token(self) -> int:
        """What one more token of one sequence costs, at this context."""
        tokens = self.request.context
        return sum(
            item.per_token
            for item in self.items
            if item.most_tokens is None or tokens < item.most_tokens
        )

    @property
    def bytes_per_sequence(self) -> int:
        """What one sequence of this context keeps: its cache and its state."""
        return sum(
            item.nbytes(1, self.request.context) for item in self.items if item.group != "weights"
        )

    @property
    def fits(self) -> bool | None:
        """Whether one device has that much; None where no budget is known."""
        return None if self.budget is None else self.total_bytes <= self.budget

    # -- what fits

    def with_request(self, **changes: Any) -> "Plan":
        """The same question with some numbers changed."""
        return _answer(
            self.description, replace(self.request, **changes), self.machine, self.budget
        )

    def longest_context(self, budget: int | None = None) -> int | None:
        """Most tokens per sequence that fit at this batch; None where no number of them matters.

        Args:
            budget: bytes of one device; the plan's own when None.

        Raises:
            InputError: no budget, or one that not even one token fits in.
        """
        return self._largest("context", budget)

    def largest_batch(self, budget: int | None = None) -> int | None:
        """Most sequences of this context that fit; None where no number of them matters.

        Args:
            budget: bytes of one device; the plan's own when None.

        Raises:
            InputError: no budget, or one that not even one sequence fits in.
        """
        return self._largest("batch", budget)

    def _largest(self, name: str, budget: int | None) -> int | None:
        budget = self.budget if budget is None else budget
        if budget is None:
            raise InputError("memory must be given, such as 141GB, to say what fits into it.")

        def needs(number: int) -> int:
            # items depend on neither: this is `total_bytes` of the changed request
            changed: dict[str, Any] = {name: number}
            asked = replace(self.request, **changed)
            live = memory.activations(self.description, asked)
            return sum(_held(self.items, asked, g) for g in GROUPS) + max(live.values())

        least = needs(1)
        if least > budget:
            raise InputError(
                f"memory must be at least {least:,} bytes for {name} 1 of {self.description.name} "
                f"on each of {self.request.devices} devices, got {budget:,}; use more devices, "
                "smaller weights or a smaller batch."
            )
        if needs(MOST) <= budget:
            return None
        low, high = 1, MOST  # fits, does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if needs(middle) <= budget else (low, middle)
        return low

    # -- seconds

    def decode(self) -> tuple[roofline.Part, ...]:
        """Time of one decoding step, by kind of work.

        Raises:
            InputError: no hardware was named.
        """
        return roofline.decode(self.description, self.request, self._need_machine())

    def prefill(self) -> tuple[roofline.Part, ...]:
        """Time of reading the whole context, by kind of work.

        Raises:
            InputError: no hardware was named.
        """
        return roofline.prefill(self.description, self.request, self._need_machine())

    @property
    def seconds_per_token(self) -> float:
        """Of one sequence: a step gives one token to each."""
        return roofline.seconds(self.decode())

    @property
    def prefill_seconds(self) -> float:
        """Until the whole context has been read."""
        return roofline.seconds(self.prefill())

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all sequences of all groups together."""
        return self.request.batch * self.request.groups / self.seconds_per_token

    def _need_machine(self) -> Hardware:
        if self.machine is None:
            raise InputError("hardware must be named, such as h200 or measured, to tell a time.")
        return self.machine

    @property
    def not_counted(self) -> tuple[str, ...]:
        """What the times leave out, in words."""
        if self.machine is None:
            return ()
        found = []
        if self.request.devices > 1:
            found.append("the time that devices talk to each other")
        if self.request.experts == "disk":
            found.append("the time that experts take from disk")
        return tuple(found)

    # -- what is not run here

    @property
    def not_run_here(self) -> tuple[str, ...]:
        """What this engine cannot allocate of it, in words."""
        if self.description.config is None:
            return (f"models of family {self.description.family}",)
        ask, found = self.request, []
        forms = {
            memory.weight_format(weight, self.description, ask)
            for weight, _ in self.description.weights()
        }
        found += [
            f"weights in {form.name}" for form in sorted(forms, key=str) if not form.allocated
        ]
        cache = ask.cache_format(self.description)
        if not cache.allocated:
            found.append(f"a cache in {cache.name.removesuffix('-row')}")
        if ask.cache == "expanded":
            found.append("an expanded cache")
        state = ask.state_format(self.description).name
        if self.description.config.num_kda_layers and state not in ("float32", "float64"):
            found.append(f"a state in {state}")
        if ask.devices > 1:
            found.append("more than one device")
        if ask.state_copies > 1:
            found.append("more than one state per sequence")
        if ask.experts == "disk" and any(
            memory.weight_format(weight, self.description, ask).name != "mxfp4"
            for weight, _ in self.description.weights()
            if weight.group == memory.ROUTED
        ):
            found.append("experts on disk that are not packed in MXFP4")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON: bytes and tokens are integers, times seconds."""
        ask = self.request
        batch, tokens = ask.batch, ask.context
        found: dict[str, Any] = {
            "model": self.description.name,
            "family": self.description.family,
            "layers": {mixer.label: layers for mixer, layers in self.description.mixers},
            "parameters": self.description.parameters,
            "active_parameters": self.description.active_parameters,
            "request": {name: getattr(ask, name) for name in ask.__slots__},
            "devices": ask.devices,
            "items": [
                {
                    "name": item.name,
                    "group": item.group,
                    "bytes": item.nbytes(batch, tokens),
                    "fixed": item.fixed,
                    "per_sequence": item.per_sequence,
                    "per_token": item.per_token,
                    "most_tokens": item.most_tokens,
                    "note": item.note,
                }
                for item in self.items
            ],
            "activations": self.activations,
            "bytes": {**{g: self.nbytes(g) for g in GROUPS}, "total": self.total_bytes},
            "bytes_per_token": self.bytes_per_token,
            "bytes_per_sequence": self.bytes_per_sequence,
            "not_counted": list(self.not_counted),
            "not_run_here": list(self.not_run_here),
            "notes": list(self.description.notes),
        }
        if self.description.config is not None:
            found["checkpoint_bytes"] = checkpoint_bytes(self.description.config)
        if ask.experts == "disk":
            every, visited = memory.expert_bytes(self.description, ask)
            found["disk"] = {"bytes": every, "read_per_token_at_most": visited}
        if self.budget is not None:
            found["memory"] = {"budget": self.budget, "fits": self.fits}
        if self.machine is not None:
            found["hardware"] = {
                "name": self.machine.name,
                "title": self.machine.title,
                "source": self.machine.source,
                "efficiency": self.machine.efficiency,
            }
            found["seconds"] = {
                "per_token": self.seconds_per_token,
                "prefill": self.prefill_seconds,
                "tokens_per_second": self.tokens_per_second,
                "decode_parts": {part.name: part.seconds for part in self.decode()},
                "prefill_parts": {part.name: part.seconds for part in self.prefill()},
            }
        return found


def plan(
    model: str | Path | HybridConfig | Mapping[str, Any],
    *,
    context: int | str,
    batch: int | str = 1,
    hardware: str | None = None,
    memory: int | str | None = None,
    **options: Any,
) -> Plan:
    """What a context costs, before anything is loaded.

    Args:
        model: a preset or a published model by name, a `config.json` or the folder that holds it,
            its contents as a mapping, or one of our configs.
        context: tokens per sequence, such as 1_000_000 or `1M` (10^6) or `1Mi` (2^20).
        batch: sequences.
        hardware: a machine of `hardware.toml`, or `measured`; without one no time is told.
        memory: bytes of one device, such as `141GB`; the machine's own when None.
        options: further fields of `Request`: `tp`, `ep`, `cache`, `cache_dtype`, `state_dtype`,
            `weights`, `prefill_chunk`, `window`, `state_copies`, `experts`,
            `expert_cache`.

    Returns:
        The plan; its numbers are those of one device.

    Raises:
        InputError: an option out of range, or devices that do not divide the model.
        ConfigError: a config that is missing something, contradicts itself, or has no reader.
    """
    return plan_for(
        find(model), context=context, batch=batch, hardware=hardware, memory=memory, **options
    )


def plan_for(
    description: Description,
    *,
    context: int | str,
    batch: int | str = 1,
    hardware: str | None = None,
    memory: int | str | None = None,
    **options: Any,
) -> Plan:
    """`plan` of a description that is at hand; arguments as there.

    Raises:
        InputError: as `plan`.
    """
    unknown = sorted(set(options) - set(Request.__slots__))
    if unknown:
        raise InputError(
            f"plan has no option {', '.join(unknown)}; it has {', '.join(Request.__slots__)}, "
            "hardware and memory."
        )
    request = Request(
        context=parse_count(context, "context"), batch=parse_count(batch, "batch"), **options
    )
    machine = None if hardware is None else _hardware(hardware)
    budget = None if memory is None else parse_bytes(memory, "memory")
    if budget is None and machine is not None:
        budget = machine.memory
    return _answer(description, request, machine, budget)


_hardware = hardware


def _held(items: tuple[memory.Item, ...], request: Request, group: str) -> int:
    batch, tokens = request.batch, request.context
    return sum(item.nbytes(batch, tokens) for item in items if item.group == group)


def _answer(
    description: Description, request: Request, machine: Hardware | None, budget: int | None
) -> Plan:
    return Plan(
        description,
        request,
        memory.items(description, request),
        memory.activations(description, request),
        machine,
        budget,
    )

"""Seconds by arithmetic: of bytes over bandwidth and operations over rate, the longer one.

    decode    cache attended   mla_decode      bytes of the cache once
              state            kda_decode      bytes of the state, read and written
              weights          linear_decode   bytes of every weight that the batch touches, once
    prefill   in chunks: pairs of attention, the rebuilding of keys and values of the past from
              latents, the recurrence, and the projections, whose weights are read once per chunk

Each is divided by the share of its limit that the hardware reaches. Devices split what `memory`
says they split; the time that they talk to each other is not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from interlace.planner.description import Description, Mixer
from interlace.planner.hardware import Hardware
from interlace.planner.memory import cached_numbers, share, weight_format
from interlace.planner.request import Request

__all__ = ["Part", "Work", "decode", "prefill", "seconds"]


@dataclass(frozen=True, slots=True)
class Part:
    """Time of one kind of work over all its layers.

    Args:
        name: what it is.
        seconds: how long.
        bound: what it waits for: `memory`, `rate` or `calls`.
        nbytes: moved.
        flops: done.
    """

    name: str
    seconds: float
    bound: str
    nbytes: float = 0.0
    flops: float = 0.0


def seconds(parts: tuple[Part, ...]) -> float:
    """All of them, one after the other."""
    return float(sum(part.seconds for part in parts))


def decode(description: Description, request: Request, machine: Hardware) -> tuple[Part, ...]:
    """One step: one token for each sequence, each with `request.context` tokens in memory."""
    work = Work(description, request, machine)
    return tuple(_merge(work.decode()))


def prefill(description: Description, request: Request, machine: Hardware) -> tuple[Part, ...]:
    """All `request.context` tokens of each sequence, chunk by chunk."""
    work = Work(description, request, machine)
    return tuple(_merge(work.prefill()))


def _merge(parts: Iterator[Part]) -> Iterator[Part]:
    """Parts of one name added up; the bound is that of the longest."""
    by_name: dict[str, list[Part]] = {}
    for part in parts:
        if part.seconds:
            by_name.setdefault(part.name, []).append(part)
    for name, same in by_name.items():
        yield Part(
            name,
            sum(part.seconds for part in same),
            max(same, key=lambda part: part.seconds).bound,
            sum(part.nbytes for part in same),
            sum(part.flops for part in same),
        )


class Work:
    """The work of one question, on one device."""

    def __init__(self, description: Description, request: Request, machine: Hardware) -> None:
        self.of, self.ask, self.machine = description, request, machine
        wide = request.activation_dtype(description) in ("float32", "float64")
        self.rate = machine.fp32_flops if wide else machine.bf16_flops
        self.cache = request.cache_format(description)

    def part(
        self, name: str, kind: str, nbytes: float | int, flops: float | int, copies: bool = False
    ) -> Part:
        """One roofline."""
        band = self.machine.copy_bandwidth if copies else self.machine.read_bandwidth
        memory, rate = nbytes / band, flops / self.rate
        bound = "memory" if memory >= rate else "rate"
        took = max(memory, rate) / self.machine.efficiency[kind]
        return Part(name, took, bound, float(nbytes), float(flops))

    def calls(self, times: int) -> Iterator[Part]:
        """The fixed time of layer calls."""
        each = self.machine.seconds_per_layer_call
        for mixer, layers in self.of.mixers:
            cost = each["kda" if mixer.kind == "state" else "mla"]
            yield Part("layer calls", times * layers * cost, "calls")
        layers = sum(count for _, count in self.of.feed_forwards)
        yield Part("layer calls", times * layers * each["mlp"], "calls")

    # -- weights

    def weights(self, rows: int, heads: int) -> tuple[float, float]:
        """Bytes of the weights that `rows` tokens touch, and the operations with them.

        Args:
            rows: tokens that pass through the layers.
            heads: tokens whose logits are wanted.
        """
        nbytes = flops = 0.0
        for end in self.of.ends:
            held = share(end, self.of, self.ask, 0)
            form = weight_format(end, self.of, self.ask)
            if end.group == "embedding":
                # a row for each token; a tied one is the head as well
                nbytes += rows * form.nbytes(self.of.hidden)
                if any(other.group == "head" for other in self.of.ends):
                    continue
            if end.group in ("head", "embedding"):
                nbytes += form.nbytes(held)
                flops += 2.0 * heads * held
        for mixer, layers in self.of.mixers:
            for weight in mixer.weights:
                held = share(weight, self.of, self.ask, mixer.kv_heads)
                nbytes += layers * weight_format(weight, self.of, self.ask).nbytes(held)
                flops += 2.0 * rows * layers * held
        for part, layers in self.of.feed_forwards:
            for weight in part.weights:
                held = share(weight, self.of, self.ask, 0)
                size = layers * weight_format(weight, self.of, self.ask).nbytes(held)
                routed = weight.group == "routed experts"
                # tokens of every group meet the experts that this device holds
                nbytes += size * (part.read_share(rows * self.ask.groups) if routed else 1.0)
                used = self.ask.groups * part.visited / part.experts if routed else 1.0
                flops += 2.0 * rows * layers * held * used
        return nbytes, flops

    # -- decoding

    def decode(self) -> Iterator[Part]:
        """One step, kind by kind."""
        batch, memory = self.ask.batch, self.ask.context
        for mixer, layers in self.of.mixers:
            rows = batch * layers
            if mixer.kind == "state":
                yield self.state_step(mixer, rows)
            elif self.of.caches:
                yield self.attend(mixer, rows, memory)
        yield from self.step()

    def step(self) -> Iterator[Part]:
        """What a decoding step does whatever its tokens remember."""
        batch = self.ask.batch
        yield self.part("weights", "linear_decode", *self.weights(batch, batch))
        yield from self.calls(1)

    def attend(self, mixer: Mixer, rows: int, memory: int) -> Part:
        """One query of each of `rows` layers and sequences against `memory` tokens."""
        numbers = cached_numbers(mixer, self.ask)
        nbytes = rows * mixer.reached(memory) * self.cache.nbytes(numbers)
        if mixer.index_dim:
            nbytes += rows * memory * self.cache.nbytes(mixer.index_dim)
        flops = rows * mixer.decode_flops(memory, self.ask.cache == "expanded") / self.ask.tp
        return self.part("attention over the cache", "mla_decode", nbytes, flops)

    def state_step(self, mixer: Mixer, rows: int) -> Part:
        """One token of each of `rows` layers and sequences in its state."""
        states = self.ask.state_format(self.of).nbytes(mixer.state)
        windows = self.ask.conv_format(self.of).nbytes(mixer.conv)
        nbytes = 2 * rows * (states + windows) / self.ask.tp
        flops = rows * mixer.decode_flops(1, False) / self.ask.tp
        return self.part("recurrent state", "kda_decode", nbytes, flops, copies=True)

    # -- prefill

    def prefill(self) -> Iterator[Part]:
        """The whole context, kind by kind."""
        batch, total = self.ask.batch, self.ask.context
        chunk = min(self.ask.prefill_chunk, total)
        chunks = -(-total // chunk)
        for mixer, layers in self.of.mixers:
            flops = batch * layers * mixer.prefill_flops(total, 0) / self.ask.tp
            kind = "kda_prefill" if mixer.kind == "state" else "mla_prefill"
            if mixer.kind == "state":
                step = self.state_step(mixer, batch * layers)
                yield self.part("recurrence", kind, chunks * step.nbytes, flops, copies=True)
                continue
            # the cache is read once per chunk: its mean length is half of the whole
            numbers = cached_numbers(mixer, self.ask)
            read = batch * layers * chunks * mixer.reached(total) * self.cache.nbytes(numbers) / 2
            yield self.part("attention", kind, read, flops)
            if mixer.kind == "mla" and self.ask.cache == "latent":
                # the latents before each chunk become keys and values again; those of the chunk
                # itself are among the projections
                past = batch * layers * chunk * chunks * (chunks - 1) // 2
                nope_value = mixer.expanded - mixer.heads * (mixer.cached - mixer.rank)
                again = 2.0 * past * mixer.rank * nope_value / self.ask.tp
                yield self.part("keys and values again", kind, 0.0, again)
        nbytes, flops = self.weights(batch * chunk, batch)
        yield self.part("weights", "linear_prefill", chunks * nbytes, chunks * flops)
        yield from self.calls(chunks)

"""The cache of a whole model: latents for each global layer, a delta state for each KDA layer.

    clone      a fork: the latents are shared until one of the two writes, the states are copied
    snapshot   keeps a copy of the states of now, so that trim and restore can come back to them
    trim       latents to any length; states only to a snapshot, to nothing, or not at all
    select, reorder, merge    rows, each with its latents, its states and its length
    save       a file; `interlace.load_cache` reads it

Bytes are a + b * capacity, plus a for each snapshot; `interlace.config.sizes` holds the formulas,
and a test holds both together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from interlace.caches.delta import DeltaState
from interlace.caches.file import ModelIdentity, save_cache
from interlace.caches.latent import LatentCache
from interlace.caches.rows import Length, RowLengths, checked_rows
from interlace.caches.snapshots import Snapshots
from interlace.config import HybridConfig
from interlace.errors import CacheError
from interlace.shapes import Int, Tensor

__all__ = ["DEFAULT_SNAPSHOTS", "HybridCache", "allocated_bytes"]

DEFAULT_SNAPSHOTS = 8

_SIZES = (
    "kda_layers",
    "full_attn_layers",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kda_num_heads",
    "kda_head_dim",
    "short_conv_kernel_size",
)
"""Fields of a config that say what a cache holds."""


class HybridCache:
    """Everything that a model remembers of a batch of sequences.

    Args:
        config: the model.
        batch: rows.
        dtype: of latents and convolution windows; the delta state is float32.
        device: where it lives.
        capacity: tokens to reserve in every global layer; 0 grows as needed.
        max_snapshots: how many `snapshot` keeps at most.
        identity: says which model fills the cache; without it the cache cannot be saved.
    """

    def __init__(
        self,
        config: HybridConfig,
        batch: int,
        dtype: torch.dtype,
        device: torch.device | str,
        capacity: int = 0,
        max_snapshots: int = DEFAULT_SNAPSHOTS,
        identity: Callable[[], ModelIdentity] | None = None,
    ) -> None:
        if not (isinstance(batch, int) and isinstance(capacity, int)) or batch < 1 or capacity < 0:
            raise CacheError(
                "a cache needs integers batch >= 1 and capacity >= 0, got "
                f"{batch!r} and {capacity!r}; "
                "give the rows of the call and the tokens to reserve."
            )
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise CacheError(f"a cache needs a floating torch.dtype, got {dtype!r}.")
        self.batch = batch
        self.dtype = dtype
        self._sizes = {name: getattr(config, name) for name in _SIZES}
        self._identity = identity
        self._unfinished = False
        self.layers: list[LatentCache | DeltaState] = [
            LatentCache(batch, config.latent_dim, dtype, device, capacity)
            if config.is_global(layer_idx)
            else DeltaState(
                batch,
                config.kda_num_heads,
                config.kda_head_dim,
                config.kda_head_dim,
                config.short_conv_kernel_size,
                device,
                dtype,
            )
            for layer_idx in range(config.num_hidden_layers)
        ]
        self._rows = RowLengths(batch, torch.device(device))
        self._snapshots = Snapshots(max_snapshots)

    # -- what it holds

    @property
    def lengths(self) -> Int[Tensor, "B"]:
        """Tokens that each row has seen, int64."""
        return self._rows.tensor

    @property
    def length(self) -> Length:
        """Tokens that every row has seen; one number per row where they differ."""
        return self._rows.length

    @property
    def capacity(self) -> int:
        """Tokens allocated per row in each global layer; 0 in a model without one."""
        return max((x.capacity for x in self._latents), default=0)

    @property
    def device(self) -> torch.device:
        """Where it lives."""
        return self._rows.device

    @property
    def whole(self) -> bool:
        """All layers have seen the same tokens: no call that used the cache failed half-way."""
        return not self._unfinished

    @property
    def snapshots(self) -> tuple[Length, ...]:
        """Lengths that `snapshot` kept, shortest first."""
        return tuple(_as_length(lengths) for lengths in self._snapshots.lengths)

    @property
    def max_snapshots(self) -> int:
        """How many snapshots are kept at most."""
        return self._snapshots.most

    @property
    def latent_bytes(self) -> int:
        """Bytes allocated for latents, those shared with a clone too."""
        return sum(x.nbytes for x in self._latents)

    @property
    def state_bytes(self) -> int:
        """Bytes allocated for delta states and convolution windows, snapshots aside."""
        return sum(x.nbytes for x in self._states.values())

    @property
    def snapshot_bytes(self) -> int:
        """Bytes allocated for the states of snapshots."""
        return sum(x.nbytes for x in self._snapshots.states)

    @property
    def nbytes(self) -> int:
        """Bytes allocated in all. For several caches that share some see `allocated_bytes`."""
        return self.latent_bytes + self.state_bytes + self.snapshot_bytes

    # -- a call of the model

    def begin(self, config: HybridConfig, batch: int, device: torch.device) -> None:
        """Open a call of the model, which `advance` closes. Mutates the cache.

        Args:
            config: of the model.
            batch: rows of the call.
            device: of its tokens.

        Raises:
            CacheError: a cache of another model, batch or device, or one whose last call failed on
                the way, so that some of its layers have seen tokens that the others have not.
        """
        self._require_whole()
        for name, own in self._sizes.items():
            if own != getattr(config, name):
                raise CacheError(
                    f"the cache must be of this model, with {name} = {getattr(config, name)}, got "
                    f"{own}; make one with lm.new_cache(batch)."
                )
        if self.batch != batch or self._rows.device.type != device.type:
            raise CacheError(
                f"the cache must be for {batch} rows on {device}, got {self.batch} rows on "
                f"{self._rows.device}; make one with lm.new_cache(batch)."
            )
        self._unfinished = True

    def advance(self, tokens: int, lengths: Int[Tensor, "B"] | None = None) -> None:
        """Count the tokens of a call that all layers have taken in. Mutates the cache.

        Args:
            tokens: T of the call.
            lengths: real tokens of each right-padded row.
        """
        self._rows.advance(tokens, lengths)
        self._unfinished = False

    # -- lengths

    def reserve(self, capacity: int) -> None:
        """Have room for `capacity` tokens per row in every global layer. Mutates the cache."""
        for layer in self._latents:
            layer.reserve(capacity)

    def snapshot(self) -> Length:
        """Keep a copy of the delta states of now; returns their length. Mutates the cache.

        At most `max_snapshots` are kept; `interlace.caches.snapshots` says which one goes.
        """
        self._require_whole()
        lengths = self._rows.values
        if self._snapshots.get(lengths) is None:
            self._snapshots.keep(lengths, {i: x.clone() for i, x in self._states.items()})
        return _as_length(lengths)

    def restore(self, length: int | Sequence[int]) -> None:
        """Go back to a kept snapshot, which stays; longer ones are dropped. Mutates the cache.

        Args:
            length: as `snapshots` names it.

        Raises:
            CacheError: a length that no snapshot has; the cache is unchanged.
        """
        target = self._target(length)
        if self._snapshots.get(target) is None:
            raise CacheError(
                f"the cache must have a snapshot of length {_as_length(target)}, but has "
                f"{self._named()}; restore one of those, or call snapshot() at that length."
            )
        self._go_back(target)

    def trim(self, length: int | Sequence[int]) -> None:
        """Forget the tokens behind `length`; snapshots of more are dropped. Mutates the cache.

        The latents can be cut anywhere. A delta state cannot: with KDA layers, `length` must be one
        that `snapshot` kept, or 0, or that of the cache. A cache whose last call failed half-way
        is whole again afterwards.

        Args:
            length: tokens of every row, or one number per row.

        Raises:
            CacheError: a length that cannot be reached; the cache is unchanged.
        """
        target = self._target(length)
        current = self._rows.values
        if any(wanted > has for wanted, has in zip(target, current, strict=True)):
            raise CacheError(
                f"trim must be to a length of at most {_as_length(current)}, which the cache has, "
                f"got {_as_length(target)}; it forgets tokens and cannot add any."
            )
        if not self._reaches(target):
            raise CacheError(
                f"a cache with KDA layers can be trimmed only to a length that snapshot() kept, "
                f"which are {self._named()}, or to 0, got {_as_length(target)}; trim to one of "
                "those and read the tokens behind it again."
            )
        self._go_back(target)

    def longest_trim(self, at_most: int) -> int:
        """The greatest length up to `at_most` that `trim` can bring all rows to; 0 at least."""
        current = self._rows.values
        if not self._states:
            return max(0, min(at_most, *current))
        kept = [x for x in (*self.snapshots, self.length) if isinstance(x, int) and x <= at_most]
        return max((x for x in kept if self._reaches([x] * self.batch)), default=0)

    # -- copies and rows

    def clone(self) -> "HybridCache":
        """A fork of the same capacity: it shares latents until one of the two writes."""
        return self._with(
            [layer.clone() for layer in self.layers], self._rows.clone(), self._snapshots.clone()
        )

    def select(self, rows: Sequence[int] | Tensor, *, capacity: int = 0) -> "HybridCache":
        """A new cache of the rows named, in that order, one of them also several times.

        Args:
            rows: numbers of rows, from 0.
            capacity: tokens to reserve per row; that of this cache at least.

        Raises:
            CacheError: a row that is not there, or a cache whose last call failed half-way.
        """
        self._require_whole()
        numbers = checked_rows(rows, self.batch)

        def of(lengths: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(lengths[row] for row in numbers)

        chosen = RowLengths(len(numbers), self.device)
        chosen.assign(of(tuple(self._rows.values)))
        snapshots = self._snapshots.change(
            of,
            lambda states: {
                i: DeltaState.of_rows([(x, row) for row in numbers]) for i, x in states.items()
            },
        )
        room = max(capacity, self.capacity)
        return self._with(_rows_of([(self, row) for row in numbers], room), chosen, snapshots)

    def reorder(self, rows: Sequence[int] | Tensor) -> None:
        """Let row i be what row `rows[i]` was, states and snapshots included. Mutates the cache.

        Args:
            rows: as many numbers as the cache has rows.

        Raises:
            CacheError: another count, or a row that is not there; the cache is unchanged.
        """
        if len(rows) != self.batch:
            raise CacheError(
                f"reorder needs {self.batch} rows, as many as the cache has, got {len(rows)}; "
                "use select for another number."
            )
        other = self.select(rows)
        self.layers[:] = other.layers
        self._rows, self._snapshots = other._rows, other._snapshots

    @staticmethod
    def merge(caches: Iterable["HybridCache"], *, capacity: int = 0) -> "HybridCache":
        """A new cache with the rows of all, in that order, each with its own length.

        Snapshots are left behind: each cache has others.

        Args:
            caches: at least one, of one model, dtype and device.
            capacity: tokens to reserve per row; the largest of the caches' at least.

        Raises:
            CacheError: none, or caches that do not go together.
        """
        parts = list(caches)
        if not parts:
            raise CacheError("merge needs at least one cache, got none.")
        first = parts[0]
        for part in parts:
            part._require_whole()
            for what in ("_sizes", "dtype", "device"):
                mine, other = getattr(first, what), getattr(part, what)
                if mine != other:
                    raise CacheError(
                        f"caches to merge must be of one model, dtype and device, got {mine} and "
                        f"{other}; make them with the same lm.new_cache."
                    )
        sources = [(part, row) for part in parts for row in range(part.batch)]
        lengths = RowLengths(len(sources), first.device)
        lengths.assign([n for part in parts for n in part._rows.values])
        room = max(capacity, *(part.capacity for part in parts))
        layers = _rows_of(sources, room)
        return first._with(layers, lengths, Snapshots(first.max_snapshots))

    # -- files

    def save(self, path: str | Path, *, prompt: Mapping[str, Tensor] | None = None) -> None:
        """Write the cache and its snapshots to the file `path`, whole or not at all.

        `interlace.load_cache` reads it, for the same model only; which one that is, is taken from
        the weights as they are now. What was reserved and not written is not stored.

        Args:
            path: a file, which is replaced, in a folder that exists.
            prompt: int64 tensors to store beside it (see `interlace.generation.PromptCache`).

        Raises:
            CacheError: a cache whose last call failed half-way, one that no model made, or a file
                that cannot be written.
        """
        self._require_whole()
        if self._identity is None:
            raise CacheError(
                "a cache that is saved must come from lm.new_cache, so that the file can name its "
                "model, and this one does not."
            )
        save_cache(self, path, self._identity(), prompt)

    # -- parts

    @property
    def _latents(self) -> list[LatentCache]:
        return [x for x in self.layers if isinstance(x, LatentCache)]

    @property
    def _states(self) -> dict[int, DeltaState]:
        return {i: x for i, x in enumerate(self.layers) if isinstance(x, DeltaState)}

    def _with(
        self, layers: list[LatentCache | DeltaState], rows: RowLengths, snapshots: Snapshots
    ) -> "HybridCache":
        """A cache of the same model with these parts."""
        other = object.__new__(HybridCache)
        other.batch, other.dtype = rows.batch, self.dtype
        other._sizes, other._identity = self._sizes, self._identity
        other._unfinished = self._unfinished
        other.layers, other._rows, other._snapshots = layers, rows, snapshots
        return other

    def _require_whole(self) -> None:
        if self._unfinished:
            raise CacheError(
                "the cache must be whole, but a call that used it failed half-way; trim() or "
                "restore() it to a snapshot, or make a new one with lm.new_cache(batch)."
            )

    def _named(self) -> str:
        return ", ".join(map(str, self.snapshots)) or "none"

    def _target(self, length: int | Sequence[int]) -> list[int]:
        values = [length] * self.batch if isinstance(length, int) else list(length)
        if len(values) != self.batch or any(type(n) is not int or n < 0 for n in values):
            raise CacheError(
                "a length must be a number of tokens, or one for each of "
                f"{self.batch} rows, got {length!r}."
            )
        return values

    def _reaches(self, target: Sequence[int]) -> bool:
        """Whether the delta states of these lengths are known."""
        here = self.whole and list(target) == self._rows.values
        known = here or not any(target) or self._snapshots.get(target) is not None
        return known or not self._states

    def _go_back(self, target: list[int]) -> None:
        here = self.whole and target == self._rows.values
        kept = self._snapshots.get(target)
        # until the last layer has followed, the cache is not one to go on from
        self._unfinished = True
        for i, layer in enumerate(self.layers):
            if isinstance(layer, LatentCache):
                layer.trim(target)
            elif not here and kept is not None:
                self.layers[i] = kept[i].clone()
            elif not here:
                layer.clear()
        self._rows.assign(target)
        self._snapshots.forget_behind(target)
        self._unfinished = False


def allocated_bytes(*caches: HybridCache) -> int:
    """Bytes allocated for all these caches together: what clones share is counted once."""
    layers = [layer for cache in caches for layer in (*cache.layers, *cache._snapshots.states)]
    storages = [x.untyped_storage() for layer in layers for x in layer.tensors.values()]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _as_length(values: Sequence[int]) -> Length:
    return values[0] if len(set(values)) == 1 else tuple(values)


def _rows_of(
    sources: list[tuple[HybridCache, int]], capacity: int
) -> list[LatentCache | DeltaState]:
    """The layers of a cache whose row i is the row `sources[i][1]` of the cache `sources[i][0]`."""
    layers: list[LatentCache | DeltaState] = []
    for i, kind in enumerate(sources[0][0].layers):
        parts = [(cache.layers[i], row) for cache, row in sources]
        if isinstance(kind, LatentCache):
            latents = [(x, row) for x, row in parts if isinstance(x, LatentCache)]
            layers.append(LatentCache.of_rows(latents, capacity))
        else:
            states = [(x, row) for x, row in parts if isinstance(x, DeltaState)]
            layers.append(DeltaState.of_rows(states))
    return layers

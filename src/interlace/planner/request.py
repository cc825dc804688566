"""What is asked of a model: context, rows, devices, formats; checked once, before arithmetic."""

from dataclasses import dataclass

from interlace.config.formats import FORMATS, Format, number_format
from interlace.errors import InputError
from interlace.planner.description import Description
from interlace.planner.units import parse_bytes, parse_count

__all__ = ["CACHE_FORMATS", "STATE_FORMATS", "WEIGHT_FORMATS", "Request"]

_FLOATS = ("bfloat16", "float16", "float32", "float64")
WEIGHT_FORMATS = ("as-stored", "bf16", "fp16", "fp32", "fp8", "int8", "int4", "mxfp4")
"""What `weights` may be."""
CACHE_FORMATS = (*_FLOATS, "fp8", "int8", "int4")
"""What `cache_dtype` may be."""
STATE_FORMATS = ("float32", "float64", "bfloat16", "float16")
"""What `state_dtype` may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One question to the planner.

    Args:
        context: tokens per sequence, prompt and answer together.
        batch: sequences of each group of `tp` devices.
        tp: devices that share each layer.
        ep: devices that share the routed experts, whole ones each; 1 leaves them to `tp`. Beyond
            `tp` there are `ep / tp` groups, each with sequences of its own.
        cache: `latent` as here, or `expanded` keys and values per head, for MLA layers.
        cache_dtype: of what grows, and of convolution windows; the weights' when None.
        state_dtype: of recurrent states; the family's own when None.
        weights: one of `WEIGHT_FORMATS`.
        prefill_chunk: tokens of one prefill call.
        window: `ring` keeps what a window reaches, `full` the whole context, as engines with one
            page table for all layers do.
        state_copies: states kept per sequence; 1 here, 1 + k where k drafted tokens are verified.
        experts: routed experts all in `memory`, or read from `disk` through a cache.
        expert_cache: bytes of that cache on one device, such as `8GB`; when None, what one token
            visits.
    """

    context: int
    batch: int = 1
    tp: int = 1
    ep: int = 1
    cache: str = "latent"
    cache_dtype: str | None = None
    state_dtype: str | None = None
    weights: str = "as-stored"
    prefill_chunk: int = 512
    window: str = "ring"
    state_copies: int = 1
    experts: str = "memory"
    expert_cache: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("context", "batch", "tp", "ep", "prefill_chunk", "state_copies"):
            object.__setattr__(self, name, parse_count(getattr(self, name), name))
        for name, known in (
            ("cache", ("latent", "expanded")),
            ("window", ("ring", "full")),
            ("weights", WEIGHT_FORMATS),
            ("experts", ("memory", "disk")),
        ):
            if getattr(self, name) not in known:
                raise InputError(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}."
                )
        if self.expert_cache is not None:
            if self.experts == "memory":
                raise InputError(
                    "expert_cache needs experts=disk, got memory; leave it out, or put the "
                    "experts on disk."
                )
            cache = parse_bytes(self.expert_cache, "expert_cache")
            object.__setattr__(self, "expert_cache", cache)
        if self.cache_dtype is not None:
            number_format(self.cache_dtype, "cache_dtype", CACHE_FORMATS)
        if self.state_dtype is not None:
            number_format(self.state_dtype, "state_dtype", STATE_FORMATS)

    @property
    def devices(self) -> int:
        """All of them."""
        return max(self.tp, self.ep)

    @property
    def groups(self) -> int:
        """Groups of `tp` devices with sequences of their own, which share the experts."""
        return max(1, self.ep // self.tp)

    def activation_dtype(self, description: Description) -> str:
        """Of what is computed: the weights' where they are not packed."""
        named = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
        return named.get(self.weights, description.dtype)

    def cache_format(self, description: Description) -> Format:
        """Of what grows."""
        name = self.cache_dtype or self.activation_dtype(description)
        found = number_format(name, "cache_dtype", CACHE_FORMATS)
        # a row has its own scales
        return FORMATS["fp8-row"] if found.name == "fp8" else found

    def conv_format(self, description: Description) -> Format:
        """Of convolution windows: the cache's, or the activations' where the cache is packed."""
        found = self.cache_format(description)
        if found.name in _FLOATS:
            return found
        return number_format(self.activation_dtype(description), "dtype", _FLOATS)

    def state_format(self, description: Description) -> Format:
        """Of recurrent states."""
        name = self.state_dtype or description.state_dtype
        if self.state_dtype is None and self.conv_format(description).name == "float64":
            name = "float64"  # in a model that exists to check the others
        return number_format(name, "state_dtype", STATE_FORMATS)

    def check_devices(self, description: Description) -> None:
        """Refuse devices that do not divide what they must share.

        Raises:
            InputError: with the number that has to be divisible.
        """
        if self.tp > 1 and self.ep > 1 and self.ep % self.tp:
            raise InputError(f"ep must be a multiple of tp ({self.tp}), got {self.ep}.")
        for mixer, _ in description.mixers:
            self._divides(mixer.heads, f"heads of each {mixer.label} layer")
            if mixer.kv_heads and mixer.kv_heads % self.tp and self.tp % mixer.kv_heads:
                raise InputError(
                    f"tp must divide the {mixer.kv_heads} key/value heads or be a multiple of "
                    f"them, got {self.tp}."
                )
        for part, _ in description.feed_forwards:
            if part.kind == "dense":
                self._divides(part.inner, "hidden width of each dense feed-forward")
            elif self.ep == 1:
                self._divides(part.expert_inner, "hidden width of each expert")
            if part.experts % self.ep:
                raise InputError(
                    f"ep must divide the {part.experts} routed experts, got {self.ep}."
                )
        has_experts = any(part.experts for part, _ in description.feed_forwards)
        if self.experts == "disk" and not has_experts:
            raise InputError(
                f"experts=disk needs a model with routed experts, and {description.name} has none."
            )
        if self.ep > 1 and not has_experts:
            raise InputError(f"ep must be 1 in a model without experts, got {self.ep}.")

    def _divides(self, number: int, what: str) -> None:
        if number % self.tp:
            fits = [str(n) for n in range(1, min(number, 64) + 1) if number % n == 0]
            raise InputError(
                f"tp must divide the {number} {what}, got {self.tp}; such as {', '.join(fits)}."
            )

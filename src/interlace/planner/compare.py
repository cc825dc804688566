"""The same model with other attention: what a hybrid is set against.

mha      multi-head attention in the same global layers, keys and values per head
all-mla  MLA in every layer, none with a state
"""

from dataclasses import replace

from interlace.config import HybridConfig
from interlace.errors import InputError
from interlace.planner.description import Description, Mixer, Weight
from interlace.planner.families import ours
from interlace.planner.source import find

__all__ = ["VARIANTS", "all_mla", "compared", "mha"]


def compared(description: Description, name: str) -> Description:
    """What `name` means beside this model: one of `VARIANTS`, or any model.

    Raises:
        InputError: a variant that this model does not have, or no model of that name.
    """
    return VARIANTS[name](description) if name in VARIANTS else find(name)


def all_mla(description: Description) -> Description:
    """MLA in every layer that mixes tokens.

    Raises:
        InputError: a model without MLA, which says nothing of its sizes.
    """
    latent = _latent(description, "all-mla")
    name = f"{description.name}, all MLA"
    config = description.config
    if config is not None:
        layers = config.num_hidden_layers
        kda, full = HybridConfig.layout(layers, 0)
        every = config.replace(
            kda_layers=kda, full_attn_layers=full, kda_num_heads=0, kda_head_dim=0
        )
        return ours.describe(every, name)
    layers = sum(count for _, count in description.mixers)
    return replace(description, name=name, mixers=((latent, layers),))


def mha(description: Description) -> Description:
    """Multi-head attention in the same global layers: as many key heads as query heads.

    Keys have the width of the part that MLA builds for each head (N), values theirs (V).

    Raises:
        InputError: a model without MLA.
    """
    _latent(description, "mha")
    mixers = tuple(
        (_multi_head(mixer, description.hidden) if mixer.kind == "mla" else mixer, layers)
        for mixer, layers in description.mixers
    )
    name = f"{description.name}, MHA"
    return replace(description, name=name, mixers=mixers, config=None)


def _multi_head(mixer: Mixer, hidden: int) -> Mixer:
    heads, value = mixer.heads, mixer.value_dim
    key = mixer.key_dim - (mixer.cached - mixer.rank)
    group = "attention"
    # an output gate stays what it is: the MLA has one where it has two matrices of this size
    gates = sum(w.count == hidden * heads * value and w.packs for w in mixer.weights) - 1
    weights = (
        Weight(group, hidden * heads * key, "heads", True),
        Weight(group, hidden * heads * (key + value), "kv_heads", True),
        Weight(group, (1 + gates) * hidden * heads * value, "heads", True),
    )
    return Mixer(
        kind="attention",
        label="multi-head attention",
        weights=weights,
        heads=heads,
        kv_heads=heads,
        key_dim=key,
        value_dim=value,
        cached=heads * (key + value),
    )


def _latent(description: Description, variant: str) -> Mixer:
    for mixer, _ in description.mixers:
        if mixer.kind == "mla":
            return mixer
    raise InputError(
        f"{variant} needs a model with MLA layers, and {description.name} has "
        f"{description.layers}; compare it with another model."
    )


VARIANTS = {"all-mla": all_mla, "mha": mha}
"""Variants of a model by name."""

"""From a `config.json` to one description, a small reader for each family.

An architecture without a reader is refused by name; nothing is guessed in silence.
"""

from collections.abc import Callable, Mapping
from typing import Any

from interlace.config import HybridConfig
from interlace.config.hybrid import MODEL_TYPES
from interlace.errors import ConfigError
from interlace.planner.description import Description
from interlace.planner.families import attention, encoder, latent, ours, state
from interlace.planner.families.reading import Keys

__all__ = ["FAMILIES", "describe"]

FAMILIES: dict[str, Callable[[Keys, str], Description]] = {
    **attention.READERS,
    **latent.READERS,
    **state.READERS,
    **encoder.READERS,
}
"""Reader of each foreign `model_type`."""

# models whose text part is nested: what the part is called where it does not say so itself
_NESTED = {
    "kimi_k25": "kimi_k2",
    "gemma3": "gemma3_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}

# said outside the text part, and of it
_SHARED = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")


def describe(model: HybridConfig | Mapping[str, Any], name: str) -> Description:
    """The description of a model.

    Args:
        model: one of our configs, or the mapping of any known family's `config.json`.
        name: what the user called it.

    Raises:
        ConfigError: an architecture without a reader, or a config that is missing something or
            contradicts itself.
    """
    if isinstance(model, HybridConfig):
        return ours.describe(model, name)
    family = model.get("model_type")
    if family in MODEL_TYPES:
        return ours.describe(HybridConfig.from_dict(model), name)
    outside: dict[str, Any] = {}
    if family in _NESTED and isinstance(model.get("text_config"), Mapping):
        outside, model = dict(model), dict(model["text_config"])
        inner = model.get("model_type") or _NESTED[family]
        family = "kimi_k2" if inner == "deepseek_v3" and family == "kimi_k25" else inner
        for key in _SHARED:
            if model.get(key) is None and outside.get(key) is not None:
                model[key] = outside[key]
        if outside.get("vision_config") is not None:
            model["vision_config"] = outside["vision_config"]
    if not isinstance(family, str) or family not in FAMILIES:
        known = ", ".join(sorted({*MODEL_TYPES, *FAMILIES, *_NESTED}))
        raise ConfigError(
            f"model_type {family!r} has no reader, and its sizes are not guessed; known are {known}"
        )
    keys = Keys({k: v for k, v in model.items() if k != "model_type"}, family)
    return FAMILIES[family](keys, name)

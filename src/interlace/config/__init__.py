"""Config: frozen, validated configurations, and the closed formulas for the size of every part.

Standard library only, so that sizing a model never loads torch.
"""

from interlace.config.hybrid import L2_NORM_EPS as L2_NORM_EPS
from interlace.config.hybrid import LORA_NORM_EPS as LORA_NORM_EPS
from interlace.config.hybrid import HybridConfig as HybridConfig
from interlace.config.presets import PRESETS as PRESETS
from interlace.config.presets import preset as preset

__all__ = ["L2_NORM_EPS", "LORA_NORM_EPS", "PRESETS", "HybridConfig", "preset"]

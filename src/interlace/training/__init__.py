"""Training: data, loss, optimiser, schedule, exact checkpoints, one or two processes."""

from interlace.training.loop import TrainResult as TrainResult
from interlace.training.loop import run as run
from interlace.training.recipe import Recipe as Recipe
from interlace.training.recipe import load_recipe as load_recipe

__all__ = ["Recipe", "TrainResult", "load_recipe", "run"]

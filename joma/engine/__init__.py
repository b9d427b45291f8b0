"""Many small transformers trained at once: settings, grids, packs, the resumable loop."""

from typing import TYPE_CHECKING

from joma.lazy import lazy_exports

if TYPE_CHECKING:
    from joma.engine.config import DataConfig, OptimiserConfig, RunConfig, TrainingConfig
    from joma.engine.grid import RECIPES, Recipe, Run, recipe, runs_of
    from joma.engine.loop import train_pack
    from joma.engine.plan import Pack, Plan, make_plan
    from joma.engine.resume import TrainedRun
    from joma.engine.sources import source_of
    from joma.engine.step import Stepper
    from joma.engine.training import Training, plan_training, train

__all__ = [
    "RECIPES", "DataConfig", "OptimiserConfig", "Pack", "Plan", "Recipe", "Run", "RunConfig", "Stepper", "TrainedRun",
    "Training", "TrainingConfig", "make_plan", "plan_training", "recipe", "runs_of", "source_of", "train", "train_pack",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)

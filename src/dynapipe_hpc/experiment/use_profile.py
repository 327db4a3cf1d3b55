"""Plans with other measurements than the configured ones."""

from pathlib import Path

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.cost.config import ProfiledConfig


def with_profile(config: ExperimentConfig, profile: Path) -> ExperimentConfig:
    """The configuration, but with measured costs from a file.

    Args:
        config: Keeps all else of its [planner.cost] if that is profiled.
        profile: As `planner.cost.path`.
    """
    given = config.planner.cost
    settings = given if isinstance(given, ProfiledConfig) else ProfiledConfig(path=profile)
    cost = settings.model_copy(update={"path": profile})
    planner = config.planner.model_copy(update={"cost": cost})
    return config.model_copy(update={"planner": planner})

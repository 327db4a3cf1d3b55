"""The methods that a study compares."""

from dataclasses import dataclass

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import with_tables


@dataclass(frozen=True, slots=True)
class Method:
    """A method, as a configuration of its own.

    Attributes:
        name: Name of the method.
        config: The configuration of the experiment by this method.
    """

    name: str
    config: ExperimentConfig


def methods_of(config: ExperimentConfig) -> list[Method]:
    """The methods of the [study] table, or the configured one, named like its batch rule.

    Raises:
        ConfigError: A method has a key or value that the experiment could not have; names it.
    """
    if not config.study.methods:
        return [Method(config.planner.batch.rule, config)]
    return [
        Method(
            each.name,
            with_tables(
                config,
                f"study.methods, '{each.name}'",
                {"planner": each.planner, "cluster": each.cluster},
            ),
        )
        for each in config.study.methods
    ]

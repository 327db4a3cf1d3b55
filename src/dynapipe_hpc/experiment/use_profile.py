"""Plans with another cost table than the configured one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.import_csv import import_csv
from dynapipe_hpc.planner.cost.profile_file import write_table


@contextmanager
def using_profile(config: ExperimentConfig, profile: Path | None) -> Iterator[ExperimentConfig]:
    """The configuration, but with costs from a table or from measurements as CSV.

    Args:
        config: Keeps all else of its [planner.cost] if that is profiled.
        profile: A cost table, or a CSV file as `import_csv` reads it, with its parameters
            beside it; None changes nothing. A CSV file is imported for this context only.

    Raises:
        InputError: The CSV files cannot be read.
    """
    if profile is None:
        yield config
    elif profile.suffix.lower() != ".csv":
        yield _with_table(config, profile)
    else:
        with TemporaryDirectory() as folder:
            table = Path(folder) / f"{profile.stem}.h5"
            write_table(import_csv(profile, parameters_beside(profile), config.model), table)
            yield _with_table(config, table)


def parameters_beside(profile: Path) -> Path:
    """Where the sizes of weights are expected that belong to measurements."""
    return profile.with_name(f"{profile.stem}_parameters.csv")


def _with_table(config: ExperimentConfig, table: Path) -> ExperimentConfig:
    given = config.planner.cost
    settings = given if isinstance(given, ProfiledConfig) else ProfiledConfig(path=table)
    cost = settings.model_copy(update={"path": table})
    planner = config.planner.model_copy(update={"cost": cost})
    return config.model_copy(update={"planner": planner})

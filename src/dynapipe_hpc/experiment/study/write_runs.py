"""The best points of a grid as configurations, which a job array runs."""

from collections.abc import Sequence
from pathlib import Path

from dynapipe_hpc.data.atomic_write import new_folder
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.study.describe_outcomes import predictions
from dynapipe_hpc.experiment.study.predict import Outcome, VariantPrediction

VARIANTS = "variants.txt"


def check_runs(folder: Path, config: ExperimentConfig) -> None:
    """Checks that `write_runs` can write configurations that can run.

    Raises:
        InputError: There are no samples to train on, or the name has spaces.
    """
    if config.data.lengths:
        raise InputError(
            "data.lengths: draws lengths of samples that have no tokens to train on; for --runs "
            "name a dataset in data.dataset"
        )
    if len(str(folder).split()) != 1:
        raise InputError(
            f"--runs '{folder}': has spaces, at which slurm/grid_search.sbatch splits lines; "
            "name another folder"
        )


def write_runs(
    folder: Path, config: ExperimentConfig, outcomes: Sequence[Outcome], n_best: int
) -> Sequence[VariantPrediction]:
    """Writes a configuration for each of the best points of every method.

    Args:
        folder: New folder of 1.toml, 2.toml, ... and variants.txt with their paths, one a line.
        config: The configuration whose grid was searched.
        outcomes: What was found of all points.
        n_best: Most points of a method, best first.

    Returns:
        The points, in the order of lines.

    Raises:
        InputError: The folder exists already, or cannot be written.
        RunError: The file system refuses, as when the disk is full.
    """
    of_method: dict[str, list[VariantPrediction]] = {o.variant.method: [] for o in outcomes}
    for each in predictions(outcomes):
        of_method[each.variant.method].append(each)
    chosen = [each for best in of_method.values() for each in best[:n_best]]
    names = [f"{number}.toml" for number in range(1, len(chosen) + 1)]
    with new_folder(folder) as temporary:
        for name, each in zip(names, chosen, strict=True):
            text = to_toml(each.variant.of(config), each.placement)
            (temporary / name).write_text(f"# {each.variant.method}\n{text}", encoding="utf-8")
        lines = "".join(f"{folder / name}\n" for name in names)
        (temporary / VARIANTS).write_text(lines, encoding="utf-8")
    return chosen

"""The best variants of every method on a grid, as a file, and as configurations to run."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from dynapipe_hpc.data.atomic_write import new_folder
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.data.output_file import FileKind
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.study.predict import Outcome, VariantPrediction, predict
from dynapipe_hpc.experiment.study.tables import predictions
from dynapipe_hpc.experiment.study.variants import grid
from dynapipe_hpc.job.ranks import Ranks
from dynapipe_hpc.report.run_folder import write_atomically

VARIANTS = "variants.txt"

COLUMNS = (
    *("method", "replicas", "stages", "shards", "zero_stage", "setting", "recompute"),
    *("layers_per_stage", "tokens_per_s", "iteration_ms", "real_share", "outcome", "reason"),
)


def grid_search(
    ranks: Ranks,
    files: Experiment,
    n_batches: int,
    on_share: Callable[[float], None] = lambda _: None,
) -> list[Outcome]:
    """Plans the first batches at every point of a grid; the ranks share its groups (collective).

    Returns what was found of every point, in the order of the grid, on the first rank, and nothing
    elsewhere. It does not depend on the number of ranks.
    """
    with ranks.fail_together():
        groups = grid(files.config)
        mine = list(enumerate(groups))[ranks.rank :: ranks.size]
        outcomes_by_group: dict[int, list[Outcome]] = {}
        for index, group in mine:
            outcomes_by_group[index] = list(predict(files, group, n_batches))
            on_share(len(outcomes_by_group) / len(mine))
    of_all = {
        i: outcomes for each in ranks.gather(outcomes_by_group) for i, outcomes in each.items()
    }
    return [outcome for index in sorted(of_all) for outcome in of_all[index]]


def write_grid(path: Path, outcomes: Sequence[Outcome]) -> None:
    write_atomically(path, _csv([COLUMNS, *map(_cells, outcomes)]))


def check_runs(folder: Path, config: ExperimentConfig) -> None:
    """Checks that `write_runs` can write configurations that can run."""
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
    """Writes 1.toml, 2.toml, ... for the `n_best` points of every method, and variants.txt.

    Returns the points, in the order of lines of variants.txt, which has the paths.
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


def _csv(rows: Sequence[Sequence[str | float]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cells(outcome: Outcome) -> tuple[str | float, ...]:
    variant = outcome.variant
    cluster = variant.cluster
    given = (
        variant.method,
        cluster.n_replicas,
        cluster.n_stages,
        cluster.n_shards,
        cluster.zero_stage,
        variant.setting or "",
        " ".join(mode.text for mode in variant.planner.cost.recompute_modes),
    )
    if isinstance(outcome, VariantPrediction):
        layers = " ".join(map(str, outcome.placement.layers_per_stage))
        numbers = (outcome.tokens_per_s, outcome.iteration_ms, outcome.real_share)
        return (*given, layers, *numbers, "prediction", "")
    kind = type(outcome).__name__.lower()
    return (*given, "", "", "", "", kind, " ".join(outcome.reason.split()))


def _holds_a_grid(path: Path) -> bool:
    return read_input(path).startswith(_csv([COLUMNS]).encode())


GRID = FileKind("a grid of predictions", _holds_a_grid)

"""The best variant of every method on the grid, and why each of the others is not."""

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path

from dynapipe_hpc.data.input_file import read_input
from dynapipe_hpc.data.output_file import FileKind
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.study.grid import grid
from dynapipe_hpc.experiment.study.predict import Outcome, VariantPrediction, predict
from dynapipe_hpc.job.ranks import Ranks
from dynapipe_hpc.report.run_folder import write_atomically

COLUMNS = (
    *("method", "replicas", "stages", "shards", "zero_stage", "setting", "recompute"),
    *("layers_per_stage", "tokens_per_s", "iteration_ms", "real_share", "outcome", "reason"),
)


def grid_search(
    ranks: Ranks,
    files: ExperimentFiles,
    n_batches: int,
    on_share: Callable[[float], None] = lambda _: None,
) -> list[Outcome]:
    """Plans the first batches of an experiment at every point of its grid; the ranks share them.

    Args:
        ranks: The processes; all together.
        files: Files of the experiment.
        n_batches: Number of global batches to plan.
        on_share: Callback that takes the finished share of this rank's groups of points.

    Returns:
        What was found of every point, in the order of the grid, on the first rank; an empty list
        elsewhere. It does not depend on the number of ranks.

    Raises:
        InputError: A file cannot be used, or there is no such grid.
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
    """Writes a line of CSV per point.

    Raises:
        RunError: The file system refuses, as when the disk is full.
    """
    write_atomically(path, _csv([COLUMNS, *map(_cells, outcomes)]))


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

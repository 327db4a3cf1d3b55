"""What a run refuses at its start: one list, for the run itself and for the doctor.

Nothing here needs torch or MPI: what is wrong is said before either takes seconds to load.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
from dynapipe_hpc.data.dataset.long_samples import describe_long
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.check_costs import check_costs, configured
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.placed import rows_of_dataset
from dynapipe_hpc.experiment.source import check_batch_sizes, check_vocabulary, open_sampler
from dynapipe_hpc.job.open_mpi.settings import permission_for_root
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.from_config import costs_of
from dynapipe_hpc.planner.schedule.config import ScheduleConfig


def check_size(n_ranks: int, cluster: Cluster) -> None:
    """Compares the job with the configuration.

    Raises:
        InputError: The job has too few or too many ranks.
    """
    if n_ranks != cluster.n_ranks:
        raise InputError(
            f"the configuration needs {cluster.n_ranks} ranks (cluster.n_replicas = "
            f"{cluster.n_replicas} x cluster.n_stages = {cluster.n_stages} x cluster.n_shards = "
            f"{cluster.n_shards}), but this job has {n_ranks}; start it with mpiexec -n "
            f"{cluster.n_ranks} (or srun -n {cluster.n_ranks}), or change [cluster]"
            f"{permission_for_root()}"
        )


def check_split_backward(schedule: ScheduleConfig) -> None:
    """Refuses schedules that this version cannot execute.

    Raises:
        InputError: Backward passes may be split.
    """
    if schedule.split_backward:
        raise InputError(
            "planner.schedule.split_backward is true, but runs keep backward passes whole; set it "
            "to false"
        )


def _ranks(config: ExperimentConfig, n_ranks: int) -> str:
    check_size(n_ranks, config.cluster)
    return f"{n_ranks}, as [cluster] needs"


def _schedule(config: ExperimentConfig, _: int) -> str:
    check_split_backward(config.planner.schedule)
    return "can be executed"


def _dataset(config: ExperimentConfig, _: int) -> str:
    with DatasetFile(Path(config.data.dataset)) as dataset:
        check_vocabulary(config, dataset)
        rows = rows_of_dataset(config, dataset)
        check_batch_sizes(config, open_sampler(config, dataset))
        long = "".join(f"; {line}" for line in describe_long(dataset, config.data))
    longest = int((rows.row_tokens + rows.target_tokens).max())
    return (
        f"{config.data.dataset}: {len(rows.row_tokens):,} samples, the longest as used "
        f"{longest:,} tokens{long}"
    )


def _costs(config: ExperimentConfig, _: int) -> str:
    check_costs(config, configured(config))
    cost, _link = costs_of(config.planner.cost, config.model, config.cluster)
    return cost.description


Check = Callable[[ExperimentConfig, int], str]
"""Check of a configuration and the ranks of the job: returns a fact, or raises `InputError`."""

RUN_CHECKS: Mapping[str, Check] = {
    "ranks": _ranks,
    "schedule": _schedule,
    "dataset": _dataset,
    "costs": _costs,
}
"""Checks that a run makes at its start, by subject."""


def check_run(config: ExperimentConfig, n_ranks: int) -> None:
    """Refuses what a run could not do.

    Raises:
        InputError: A file cannot be used, or does not go with the rest.
    """
    for check in RUN_CHECKS.values():
        check(config, n_ranks)


def check_profile(config: ExperimentConfig, n_ranks: int) -> None:
    """Refuses to measure what no run could use; the dataset need not be there yet.

    Raises:
        InputError: The job has neither the ranks of the configuration nor those of one stage, or
            the dataset does not go with the model.
    """
    if n_ranks != config.cluster.n_shards:
        check_size(n_ranks, config.cluster)
    path = Path(config.data.dataset)
    if path.exists():
        with DatasetFile(path) as dataset:
            check_vocabulary(config, dataset)

"""Whether a configuration goes with this job, its files and its memory."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from dynapipe_hpc.data.dataset_file import DatasetFile
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.assemble import check_size, check_split_backward
from dynapipe_hpc.experiment.check_costs import check_costs
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.describe_room import describe_room
from dynapipe_hpc.experiment.doctor.case import Case
from dynapipe_hpc.experiment.doctor.finding import Finding, Level
from dynapipe_hpc.experiment.placed import placed, rows_of_dataset
from dynapipe_hpc.experiment.source import check_batch_sizes, open_sampler
from dynapipe_hpc.planner.batch.memory import activation_bytes, does_not_fit
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes
from dynapipe_hpc.planner.cost.from_config import costs_of


def look_at_config(case: Case) -> Iterator[Finding]:
    """By the first rank, for all."""
    if not case.job.is_first or case.path is None:
        return
    if case.config is None:
        yield Finding("file", case.error, Level.PROBLEM)
        return
    config = case.config
    yield Finding("file", f"{case.path}: can be used")
    yield from _checked("ranks", lambda: _ranks(case, config))
    yield from _checked("schedule", lambda: _schedule(config))
    yield from _checked("dataset", lambda: _dataset(config))
    yield from _checked("costs", lambda: _costs(config))
    try:
        config = placed(config)
        cost, _ = costs_of(config.planner.cost, config.model, config.cluster)
    except (InputError, OSError):  # said above
        return
    yield from _memory(config, cost)


def _checked(subject: str, check: Callable[[], str]) -> Iterator[Finding]:
    try:
        yield Finding(subject, check())
    except (InputError, OSError) as error:
        yield Finding(subject, str(error), Level.PROBLEM)


def _ranks(case: Case, config: ExperimentConfig) -> str:
    check_size(case.job, config.cluster)
    return f"{case.job.size}, as [cluster] needs"


def _schedule(config: ExperimentConfig) -> str:
    check_split_backward(config.planner.schedule)
    return "can be executed"


def _dataset(config: ExperimentConfig) -> str:
    with DatasetFile(Path(config.data.dataset)) as dataset:
        rows = rows_of_dataset(config, dataset)
        check_batch_sizes(config, open_sampler(config, dataset))
    longest = int((rows.row_tokens + rows.target_tokens).max())
    return (
        f"{config.data.dataset}: {len(rows.row_tokens):,} samples, the longest as used "
        f"{longest:,} tokens"
    )


def _costs(config: ExperimentConfig) -> str:
    check_costs(config)
    cost, _ = costs_of(config.planner.cost, config.model, config.cluster)
    return cost.description


def _longest(config: ExperimentConfig) -> str:
    lines = describe_room(config, Path(config.data.dataset)).splitlines()
    n_sides = 2 if config.model.is_encoder_decoder else 1
    return f"rows that fit, by recomputation: {'; '.join(lines[-n_sides:])}"


def _memory(config: ExperimentConfig, cost: CostModel) -> Iterator[Finding]:
    """What stages need of their device, and what would still fit."""
    yield from _checked("longest", lambda: _longest(config))
    with DatasetFile(Path(config.data.dataset)) as dataset:
        rows = rows_of_dataset(config, dataset)
    one = np.ones(1, np.int64)
    shapes = Shapes(one, one * rows.row_tokens.max(), one * rows.target_tokens.max())
    # The last mode recomputes the most, and keeps the least.
    costs = cost.stage_costs(shapes, cost.recompute_modes[-1])
    sample_bytes = activation_bytes(costs)[0]
    limit_bytes = config.cluster.device_memory_bytes
    if not (cost.static_bytes + sample_bytes <= limit_bytes).all():
        way_out = "lower data.max_tokens"
        error = does_not_fit("the longest sample", costs, cost, config.cluster, way_out)
        yield Finding("memory", str(error), Level.PROBLEM)
        return
    for stage, (model, sample) in enumerate(zip(cost.static_bytes, sample_bytes, strict=True)):
        yield Finding(
            f"stage {stage}",
            f"{model / 1e6:,.1f} MB for the model and {sample / 1e6:,.1f} MB for the longest "
            f"sample, of {limit_bytes / 1e6:,.1f} MB",
        )

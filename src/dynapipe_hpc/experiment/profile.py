"""Measures what a run's layers, links and updates take on this machine."""

from datetime import UTC, datetime

import numpy as np
import torch

from dynapipe_hpc.experiment.assemble import check_family, check_size, dtype_of
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.experiment.machine import machine_facts
from dynapipe_hpc.experiment.profile_grid import ProfileGrid
from dynapipe_hpc.experiment.profile_link import measure_link
from dynapipe_hpc.experiment.profile_rounds import OnProgress, measure_rounds
from dynapipe_hpc.experiment.profile_stack import STACKS, Stack, sample_loader
from dynapipe_hpc.experiment.profile_update import measure_update
from dynapipe_hpc.experiment.separate_layers import layer_profiles, separate_layers
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.profile_table import ProfileTable, fingerprint_of
from dynapipe_hpc.training.optimizer import state_factor

QUICKER_ROUNDS = 0.25


def check_job(job: Job, config: ExperimentConfig) -> None:
    """Checks that the ranks can stand for those of a run.

    Raises:
        InputError: The job has neither one rank nor those of the configuration, or the model
            cannot be run.
    """
    check_family(config.model)
    if job.size > 1:
        check_size(job, config.cluster)


def profile(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    repetition_s: float,
    on_progress: OnProgress,
) -> ProfileTable | None:
    """Measures what the ranks of a run would execute; all ranks together.

    All ranks measure the same micro-batch at the same time, so that they compete for cores
    and memory as they do in a run.

    Args:
        job: The ranks, after `check_job`.
        config: The model and how it is trained.
        grid: The micro-batches to measure.
        repetition_s: Time for the rounds over the grid after the first, which warms up.
        on_progress: Called with the share that is done.

    Returns:
        The table on the first rank, None elsewhere.
    """
    torch.set_num_threads(config.training.threads)
    rounds = _measure_layers(job, config, grid, repetition_s, on_progress)
    update = measure_update(job, config)
    link = measure_link(job, dtype_of(config), full_duplex=config.cluster.link.full_duplex)
    # Disturbances only ever add time, so the quicker rounds are the typical ones.
    by_rank = job.gather(np.quantile(rounds, QUICKER_ROUNDS, axis=0))
    if not by_rank:
        return None
    parts = separate_layers(np.median(by_rank, axis=0))
    element_bytes = dtype_of(config).itemsize
    return ProfileTable(
        model=fingerprint_of(config.model),
        layers=layer_profiles(parts, grid, config.model, element_bytes),
        element_bytes=element_bytes,
        state_factor=state_factor(dtype_of(config)),
        update=update,
        link=link,
        provenance=_provenance(job, config),
    )


def _measure_layers(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    repetition_s: float,
    on_progress: OnProgress,
) -> FloatArray:
    with sample_loader(grid.row_tokens, config.model.vocab_size) as loader:
        stacks = [Stack(config, stack, loader) for stack in STACKS]
        return measure_rounds(job, stacks, grid.microbatches(), repetition_s, on_progress)


def _provenance(job: Job, config: ExperimentConfig) -> dict[str, str]:
    facts = {name: str(value) for name, value in machine_facts(job.size).items()}
    return facts | {
        "source": "measured; transient bytes are estimates",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": str(config.training.threads),
        "dtype": config.training.dtype,
    }

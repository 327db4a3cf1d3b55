"""The profile: costs of a run's layers, links and updates, measured on this machine."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.place_layers import any_placement
from dynapipe_hpc.experiment.profile.begun_table import measured_with, modes_to_measure
from dynapipe_hpc.experiment.profile.bench import Bench
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.layer_profiles import layer_profiles
from dynapipe_hpc.experiment.profile.link import measure_link
from dynapipe_hpc.experiment.profile.rounds import OnProgress, share_of
from dynapipe_hpc.experiment.profile.rounds_file import RoundsFile
from dynapipe_hpc.experiment.profile.stack import tokens_on_disk
from dynapipe_hpc.experiment.profile.update import measure_update
from dynapipe_hpc.experiment.rank.assemble import build_module, build_optimizer
from dynapipe_hpc.experiment.rank.channels import Channels, connect
from dynapipe_hpc.experiment.rank.devices import RankDevice, dtype_of, find_device
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.models.tied_weights import Tied, tied_weights
from dynapipe_hpc.planner.cost.model_state import state_factor
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable, fingerprint_of
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.config import N_AVERAGES
from dynapipe_hpc.training.optimizer import Optimizer


def profile(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    *,
    repetition_s: float,
    on_progress: OnProgress,
    begun: ProfileTable | None = None,
    beside: Path | None = None,
) -> Iterator[ProfileTable | None]:
    """Measures the layers, links and updates that a run would execute; all ranks together.

    All ranks measure the same micro-batch at the same time, so that they compete for cores
    and memory as they do in a run; the shards of a stage measure together.

    Args:
        job: The ranks, after `check_profile`.
        config: The configuration of the run.
        grid: The micro-batches to measure.
        repetition_s: Time, per layout and mode of recomputation, for the rounds over the grid after
            the first, which warms up.
        on_progress: Callback that takes the share done, from 0 to 1.
        begun: Table to add to, on the first rank; None to begin one.
        beside: Path of the table; the rounds of an interrupted mode are kept beside it.

    Yields:
        The table so far on the first rank, None elsewhere: a new table first without layers, then
        each time after a layout and mode of recomputation, whose rounds are then deleted.
    """
    torch.set_num_threads(config.training.threads)
    keep_freed_memory()
    modes = job.broadcast(modes_to_measure(config, begun))
    with job.fail_together():
        on = find_device(job, config)
    tied = _tied(job, config)
    channels = connect(config, tied, job, on)
    table = begun
    if not job.broadcast(begun is not None):
        table = _without_layers(job, config, grid, tied=tied, channels=channels, on=on)
        yield table
    kept = None if table is None or beside is None else RoundsFile(beside, table.created)
    with tokens_on_disk(grid.samples, config.model.vocab_size) as tokens:
        bench = Bench(job, config, tokens, channels, on, repetition_s, kept)
        for k, mode in enumerate(modes):
            stacks = bench.measure(mode, grid, share_of(on_progress, k, len(modes)))
            if table is not None:
                new = layer_profiles(stacks, grid, config, mode)
                table = replace(table, layers={**table.layers, **new})
            yield table
            bench.forget()
    channels.close()


def _tied(job: Job, config: ExperimentConfig) -> Tied:
    """Tied weights; a job of one stage has no other stages to share them with."""
    if job.size != config.cluster.n_ranks:
        return {}
    return tied_weights(config.model, any_placement(config), config.cluster.n_shards)


def _without_layers(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    *,
    tied: Tied,
    channels: Channels,
    on: RankDevice,
) -> ProfileTable | None:
    """A table without layers, on the first rank; None elsewhere."""
    dtype = dtype_of(config)
    update = measure_update(
        job, _optimizer(job, config, tied, channels.collectives, device=on.device)
    )
    full_duplex = config.cluster.link.full_duplex
    link = measure_link(job, channels, dtype, on.device, full_duplex=full_duplex)
    if not job.is_first:
        return None
    return ProfileTable(
        model=fingerprint_of(config.model),
        layers={},
        element_bytes=dtype.itemsize,
        state_factor=state_factor(dtype.itemsize, N_AVERAGES[config.training.optimizer]),
        update=update,
        link=link,
        provenance=_provenance(job, config, grid),
    )


def _optimizer(
    job: Job,
    config: ExperimentConfig,
    tied: Tied,
    collectives: Collectives,
    *,
    device: torch.device,
) -> Optimizer:
    """The optimizer of this rank's stage, as in a run."""
    stage = config.cluster.stage_of(job.rank)
    with job.fail_together():
        module = build_module(config, any_placement(config), stage, collectives, device=device)
    return build_optimizer(config, tied, module, collectives)


def _provenance(job: Job, config: ExperimentConfig, grid: ProfileGrid) -> dict[str, str]:
    return measured_with(config, grid, job.size) | {
        "source": "measured; transient bytes without a kernel's own, except on GPUs",
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }

"""Measures what a run's layers, links and updates take on this machine."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np
import torch

from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.experiment.assemble import (
    check_size,
    connect,
    dtype_of,
)
from dynapipe_hpc.experiment.begun_table import measured_with, modes_to_measure
from dynapipe_hpc.experiment.channels import Channels
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.devices import Place, find_place
from dynapipe_hpc.experiment.launch import Job
from dynapipe_hpc.experiment.profile_grid import ProfileGrid
from dynapipe_hpc.experiment.profile_link import measure_link
from dynapipe_hpc.experiment.profile_rounds import OnProgress, measure_rounds, share_of
from dynapipe_hpc.experiment.profile_stack import (
    DECODER_STACKS,
    ENCODER_STACKS,
    STACKS,
    Stack,
    StackShape,
    sample_loader,
)
from dynapipe_hpc.experiment.profile_update import measure_update
from dynapipe_hpc.experiment.separate_layers import (
    layer_profiles,
    separate_decoder,
    separate_layers,
)
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.profile_table import ProfileTable, fingerprint_of
from dynapipe_hpc.planner.cost.stage_parts import DECODER, ENCODER, LAYER
from dynapipe_hpc.training.optimizer import state_factor
from dynapipe_hpc.training.token_loader import TokenLoader

QUICKER_ROUNDS = 0.25


def check_job(job: Job, config: ExperimentConfig) -> None:
    """Checks that the ranks can stand for those of a run.

    Raises:
        InputError: The job has neither the ranks of the configuration nor those of one stage, or
            the model cannot be run.
    """
    if job.size != config.cluster.n_shards:
        check_size(job, config.cluster)


def profile(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    repetition_s: float,
    on_progress: OnProgress,
    begun: ProfileTable | None = None,
) -> Iterator[ProfileTable | None]:
    """Measures what the ranks of a run would execute; all ranks together.

    All ranks measure the same micro-batch at the same time, so that they compete for cores
    and memory as they do in a run; the shards of a stage measure together.

    Args:
        job: The ranks, after `check_job`.
        config: The model and how it is trained.
        grid: The micro-batches to measure.
        repetition_s: Time, per mode of recomputation, for the rounds over the grid after the
            first, which warms up.
        on_progress: Called with the share that is done.
        begun: On the first rank, a table to add to.

    Yields:
        After each mode of recomputation, the table so far on the first rank, None elsewhere.
    """
    torch.set_num_threads(config.training.threads)
    modes = job.broadcast(modes_to_measure(config, begun))
    with job.agreeing():
        place = find_place(job, config)
    channels = connect(config, job, place)
    is_begun = job.broadcast(begun is not None)
    table = begun if is_begun else _without_layers(job, config, channels, place)
    with sample_loader(grid.samples, config.model) as loader:
        measure = partial(_parts, job, config, grid, loader, channels, place, repetition_s)
        for k, mode in enumerate(modes):
            parts = measure(mode, share_of(on_progress, k, len(modes)))
            if table is not None:
                new = layer_profiles(parts, grid, config, mode)
                table = replace(table, layers={**table.layers, **new})
            yield table
    channels.close()


def _without_layers(
    job: Job, config: ExperimentConfig, channels: Channels, place: Place
) -> ProfileTable | None:
    """The rest of a table, on the first rank."""
    dtype = dtype_of(config)
    same_shard = job.divide(channels.collectives.shard)
    update = measure_update(job, config, channels.collectives, place.device)
    link = measure_link(
        job, same_shard, channels.transport, dtype, place.device, config.cluster.link.full_duplex
    )
    if not job.is_first:
        return None
    return ProfileTable(
        model=fingerprint_of(config.model),
        layers={},
        element_bytes=dtype.itemsize,
        state_factor=state_factor(dtype),
        update=update,
        link=link,
        provenance=_provenance(job, config),
    )


def _parts(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    loader: TokenLoader[Any],
    channels: Channels,
    place: Place,
    repetition_s: float,
    mode: Recompute,
    on_progress: OnProgress,
) -> dict[str, FloatArray]:
    """By kind of layer, what `layer_profiles` takes, on the first rank."""

    def measured(
        shapes: Sequence[StackShape], microbatches: Sequence[MicroBatch], progress: OnProgress
    ) -> FloatArray:
        shards, device = channels.collectives, place.device
        stacks = [Stack(config, shape, loader, shards, device) for shape in shapes]
        of_mode = [replace(m, recompute=mode) for m in microbatches]
        return _measure(job, stacks, of_mode, repetition_s, progress)

    if not config.model.is_encoder_decoder:
        return separate_layers(measured(STACKS, grid.microbatches(), on_progress))
    first, second = (share_of(on_progress, k, 2) for k in range(2))
    parts = separate_layers(measured(ENCODER_STACKS, grid.microbatches(), first))
    parts[ENCODER] = parts.pop(LAYER)
    return parts | {DECODER: separate_decoder(measured(DECODER_STACKS, grid.pairs(), second))}


def _measure(
    job: Job,
    stacks: Sequence[Stack],
    microbatches: Sequence[MicroBatch],
    repetition_s: float,
    on_progress: OnProgress,
) -> FloatArray:
    """What `separate_layers` takes, on the first rank; nothing of use elsewhere."""
    rounds = measure_rounds(job, stacks, microbatches, repetition_s, on_progress)
    # Disturbances only ever add time, so the quicker rounds are the typical ones.
    typical: FloatArray = np.quantile(rounds, QUICKER_ROUNDS, axis=0)
    return np.median(job.gather(typical) or [typical], axis=0)


def _provenance(job: Job, config: ExperimentConfig) -> dict[str, str]:
    return measured_with(config, job.size) | {
        "source": "measured; transient bytes without a kernel's own, except on GPUs",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }

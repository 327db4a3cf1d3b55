"""Assembly of the parts of one rank."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.dataset.joined_datasets import Dataset
from dynapipe_hpc.data.dataset.long_samples import reader_of, trained_tokens_of
from dynapipe_hpc.executor.clock import Clock
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.channels import Channels, connect
from dynapipe_hpc.experiment.rank.devices import CPU, RankDevice, clock_of, dtype_of, reserve_memory
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.tied_weights import Tied, tied_weights
from dynapipe_hpc.training.checkpoint.state import TrainingState
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.module_stage import ModuleStage
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.token_loader import Collate, TokenLoader


@dataclass(frozen=True, slots=True)
class Worker:
    """The parts of this rank that execute plans.

    Attributes:
        loader: Loader of the tokens of the current iteration.
        stage: The layers of the rank's stage.
        state: State of training of these layers.
        channels: Channels to the other ranks.
        clock: Clock of the device.
        open_loader: Function that makes the loader of the tokens of another dataset.
        device: Device that computes.
        reports_loss: Whether this rank knows the loss: it is on the last stage, of whose shards
            it is the first.
    """

    loader: TokenLoader[Any]
    stage: ModuleStage[Any]
    state: TrainingState
    channels: Channels
    clock: Clock[Any]
    open_loader: Callable[[Dataset], TokenLoader[Any]]
    device: torch.device
    reports_loss: bool


def build_worker(experiment: Experiment, job: Job, on: RankDevice) -> Worker:
    """Builds the stage of this rank on its device; all ranks together."""
    config, dataset, placement = experiment.config, experiment.dataset, experiment.placement
    torch.set_num_threads(config.training.threads)
    keep_freed_memory()
    tied = tied_weights(config.model, placement, config.cluster.n_shards)
    channels = connect(config, tied, job, on)
    stage_number = config.cluster.stage_of(job.rank)
    with job.fail_together():  # layers of a library may be some that cannot be trained
        module = build_module(
            config, placement, stage_number, channels.collectives, device=on.device
        )
    open_loader = partial(loader_of, config=config, collate=module.collate)
    loader = open_loader(dataset)
    optimizer = build_optimizer(config, tied, module, channels.collectives)
    state = TrainingState(module, optimizer, channels.collectives)
    with job.fail_together():
        reserve_memory(on, config)
    # After the reservation: a stage's account of memory begins when it is made, and its first peak
    # would be the reserved block.
    stage = ModuleStage(module, loader, optimizer)
    reports_loss = module.is_last and channels.collectives.shard == 0
    clock = clock_of(on.device)
    return Worker(loader, stage, state, channels, clock, open_loader, on.device, reports_loss)


def loader_of(
    dataset: Dataset, config: ExperimentConfig, collate: Collate[Any]
) -> TokenLoader[Any]:
    """The loader of the tokens of a dataset, by the configuration of a run."""
    predicts_inputs = not config.model.has_target_rows
    return TokenLoader(
        reader_of(dataset, config.data),
        dataset.start_id,
        config.training.loss_weighting,
        collate,
        trained=trained_tokens_of(dataset, config.data, predicts_inputs=predicts_inputs),
        rejected=dataset.read_rejected if dataset.has_pairs else None,
    )


def build_optimizer(
    config: ExperimentConfig, tied: Tied, module: nn.Module, collectives: Collectives
) -> Optimizer:
    """The optimizer of a stage's weights, together with the other ranks of `collectives`."""
    shares_state = config.cluster.zero_stage == 1
    return Optimizer(module, config.training, collectives, shares_state=shares_state, tied=tied)


def build_module(
    config: ExperimentConfig,
    placement: Placement,
    stage: int,
    shards: Shards,
    *,
    device: torch.device = CPU,
) -> StageOfFamily:
    """A shard of the layers of a stage, with initial weights."""
    return family_of(config.model)(
        config.model,
        placement.layers[stage],
        first=stage == 0,
        last=stage == placement.n_stages - 1,
        shards=shards,
        seed=config.training.seed,
        dtype=dtype_of(config),
        device=device,
    )

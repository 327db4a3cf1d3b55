"""Parts of a rank: the layers of its stage, and their optimizer."""

import torch
from torch import nn

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.devices import CPU, dtype_of
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.tied_weights import Tied
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.optimizer import Optimizer


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

"""Parts of a rank: the layers of its stage, their optimizer, and the loader of tokens."""

from typing import Any

import torch
from torch import nn

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.dataset.joined_datasets import Dataset
from dynapipe_hpc.data.dataset.long_samples import reader_of, trained_tokens_of
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.devices import CPU, dtype_of
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.models.tied_weights import Tied
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.token_loader import Collate, TokenLoader


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

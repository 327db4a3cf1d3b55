"""Pipelines of decoder-only models with large weights, and samples that they run on."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from tests.examples.run_stage import run_stage
from tests.examples.training_case import START_ID, RandomTokens
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.decoder import DecoderStage

StageT = TypeVar("StageT", bound=DecoderStage)

SAMPLES = [Sample(1, 9, 4), Sample(2, 0, 1), Sample(3, 0, 20), Sample(4, 3, 10), Sample(5, 2, 3)]
WEIGHTS = {1: 0.5, 2: 2.0, 3: 0.125, 4: 0.25, 5: 1.0}
TOKENS = IterationTokens({s.sample_id: s for s in SAMPLES}, WEIGHTS, RandomTokens(), START_ID)


def stages_of(
    kind: type[StageT], shape: ModelShape, n_stages: int, dtype: torch.dtype = torch.float64
) -> list[StageT]:
    """A model whose weights, drawn in float64, are large enough to show every mistake."""
    pipeline = []
    for i, layers in enumerate(Placement.equal_shares(shape.n_layers, n_stages).layers):
        last = i == n_stages - 1
        stage = kind(shape, layers, first=i == 0, last=last, dtype=torch.float64)
        for name, weight in stage.named_parameters():
            seed = sum(name.encode())
            torch.nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
        pipeline.append(stage.to(dtype))
    return pipeline


def run(
    pipeline: Sequence[DecoderStage], microbatch: MicroBatch, mode: Recompute = Recompute.NONE
) -> Tensor:
    """The loss, or the activation if the last stage is missing."""
    activation = None
    for stage in pipeline:
        activation = run_stage(stage, activation, stage.collate(microbatch, TOKENS), mode)
    assert activation is not None
    return activation

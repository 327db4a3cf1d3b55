"""A T5 against a plain one: padded and packed."""

from dataclasses import replace

import pytest
import torch
from tests.examples.run_stage import run_stage
from tests.examples.training_case import START_ID, T5_SHAPE, RandomTokens, packed_pairs
from tests.oracles.plain_models import bucket, t5_losses
from torch import Tensor

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.t5 import T5Stage, buckets

SAMPLES = [Sample(1, 9, 4), Sample(2, 0, 1), Sample(3, 5, 18), Sample(4, 21, 3), Sample(5, 2, 3)]
WEIGHTS = {1: 0.5, 2: 2.0, 3: 0.125, 4: 0.25, 5: 1.0}
TOKENS = IterationTokens({s.sample_id: s for s in SAMPLES}, WEIGHTS, RandomTokens(), START_ID)
FILLS = [(0, 0), (7, 0), (0, 6), (3, 21), (131, 300)]
N_STAGES = [1, 2, 3, 6]


def stages(n_stages: int, dtype: torch.dtype = torch.float64) -> list[T5Stage]:
    """A model whose weights are large enough to show every mistake."""
    placement = Placement.equal_shares(T5_SHAPE.n_all_layers, n_stages)
    pipeline = [
        T5Stage(
            T5_SHAPE,
            placement.layers[stage],
            first=stage == 0,
            last=stage == n_stages - 1,
            dtype=torch.float64,
        )
        for stage in range(n_stages)
    ]
    for stage in pipeline:
        for name, weight in stage.named_parameters():
            if "norm" not in name:
                seed = sum(name.encode())
                torch.nn.init.normal_(weight, std=0.5, generator=torch.manual_seed(seed))
        stage.to(dtype)
    return pipeline


def run(
    pipeline: list[T5Stage],
    microbatch: MicroBatch,
    mode: Recompute = Recompute.NONE,
    tokens: IterationTokens = TOKENS,
) -> Tensor:
    """The loss, or the activation if the last stage is missing."""
    activation = None
    for stage in pipeline:
        activation = run_stage(stage, activation, stage.collate(microbatch, tokens), mode)
    assert activation is not None
    return activation


def written_out(sample: Sample) -> float:
    """The weighted loss of a sample, by a program that knows nothing of rows."""
    (whole,) = stages(1)
    inputs, targets = (side.tolist() for side in TOKENS.read(sample))
    losses = t5_losses(whole.state_dict(), T5_SHAPE.model_dump(), inputs, targets, START_ID)
    return WEIGHTS[sample.sample_id] * float(losses.sum())


@pytest.mark.parametrize("fills", FILLS)
@pytest.mark.parametrize("n_stages", N_STAGES)
def test_the_loss_is_the_sum_over_documents_written_out_alone(
    n_stages: int, fills: tuple[int, int]
) -> None:
    expected = sum(map(written_out, SAMPLES))
    found = run(stages(n_stages), packed_pairs(SAMPLES, *fills))
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"offsets": (0, 9, 10, 16, 36, 38)},
            "sample 3 has 5 input tokens, but offsets 10 and 16 of a packed row around it",
        ),
        (
            {"target_offsets": (0, 3, 5, 23, 26, 29)},
            "sample 1 has 4 target tokens, but offsets 0 and 3 of a packed row around it",
        ),
    ],
)
def test_samples_of_other_lengths_than_the_plan_says_are_refused(
    change: dict[str, tuple[int, ...]], message: str
) -> None:
    microbatch = replace(packed_pairs(SAMPLES), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        stages(1)[0].collate(microbatch, TOKENS)


SIDES = pytest.mark.parametrize("side", ["encoder", "decoder"])


@SIDES
@pytest.mark.parametrize("sizes", [(32, 128), (10, 40), (4, 3)])
def test_near_distances_have_buckets_of_their_own_and_far_ones_share(
    side: str, sizes: tuple[int, int]
) -> None:
    found = buckets(torch.arange(-300, 301), *sizes, causal=side == "decoder")
    assert found.tolist() == [bucket(distance, side, *sizes) for distance in range(-300, 301)]

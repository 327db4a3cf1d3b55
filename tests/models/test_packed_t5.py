"""Packed micro-batches of a T5, against every document alone."""

from dataclasses import replace

import pytest
import torch
from tests.examples.run_stage import run_stage
from tests.examples.training_case import (
    START_ID,
    T5_SHAPE,
    RandomTokens,
    packed_pairs,
    padded,
)
from tests.oracles.plain_t5 import losses
from torch import Tensor

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import MicroBatch, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.collate import IterationTokens
from dynapipe_hpc.models.t5 import T5Stage

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


def alone(sample: Sample) -> MicroBatch:
    """A sample in rows that are as long as it is."""
    rows = padded([sample], T5_SHAPE)
    return replace(rows, target_tokens=sample.target_tokens)


def written_out(sample: Sample) -> float:
    """The weighted loss of a sample, by a program that knows nothing of rows."""
    (whole,) = stages(1)
    weights = {name: p.detach().numpy() for name, p in whole.named_parameters()}
    inputs, targets = (side.tolist() for side in TOKENS.read(sample))
    sizes = (T5_SHAPE.n_layers, T5_SHAPE.n_heads)
    of_tokens = losses(weights, *sizes, inputs or [START_ID], targets, START_ID)
    return WEIGHTS[sample.sample_id] * sum(of_tokens)


@pytest.mark.parametrize("fills", FILLS)
@pytest.mark.parametrize("n_stages", N_STAGES)
def test_the_loss_is_the_sum_over_documents_written_out_alone(
    n_stages: int, fills: tuple[int, int]
) -> None:
    expected = sum(map(written_out, SAMPLES))
    found = run(stages(n_stages), packed_pairs(SAMPLES, *fills))
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("fills", FILLS)
@pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)
def test_gradients_are_the_sum_of_those_of_documents_alone(
    mode: Recompute, fills: tuple[int, int]
) -> None:
    (together,), (apart,) = stages(1), stages(1)
    torch.autograd.backward(run([together], packed_pairs(SAMPLES, *fills), mode))
    for sample in SAMPLES:
        torch.autograd.backward(run([apart], alone(sample)))
    expected = dict(apart.named_parameters())
    for name, weight in together.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name].grad, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("n_before", [1, 2, 3, 4, 5])
def test_a_document_has_the_same_bits_whatever_its_neighbours_hold(n_before: int) -> None:
    """Neighbours change places with others of as many tokens on both sides."""
    samples = {i: Sample(i, 9, 4) for i in (1, 2)} | {3: Sample(3, 5, 18), 4: Sample(4, 21, 3)}
    tokens = IterationTokens(samples, dict.fromkeys(samples, 0.5), RandomTokens(), START_ID)
    pipeline, found = stages(6), []
    for ids in ((1, 3, 2, 4), (2, 3, 1, 4)):
        microbatch = packed_pairs([samples[i] for i in ids], 4, 3)
        before, after = pipeline[:n_before], pipeline[n_before:]
        activation = run(before, microbatch, tokens=tokens).detach().requires_grad_()
        last = activation
        for stage in after:
            last = run_stage(stage, last, stage.collate(microbatch, tokens))
        torch.autograd.backward(last)
        assert activation.grad is not None
        n_inputs = microbatch.row_tokens
        places = [slice(9, 14), slice(n_inputs + 4, n_inputs + 22)]
        found.append([x[0, p] for x in (activation.detach(), activation.grad) for p in places])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_stages_between_others_know_documents_and_read_no_tokens() -> None:
    _, encoder, _, decoder, _ = stages(5)
    for stage in (encoder, decoder):
        batch = stage.collate(packed_pairs(SAMPLES, 2), TOKENS)
        assert batch.documents is not None
        assert batch.documents.inputs.offsets == (0, 9, 10, 15, 36, 38, 40)
        assert batch.documents.targets.offsets == (0, 4, 5, 23, 26, 29)
        assert (batch.inputs == START_ID).all()
        assert (batch.tokens.labels == START_ID).all()
        assert stage.collate(padded(SAMPLES, T5_SHAPE), TOKENS).documents is None


def test_sixteen_bits_give_the_loss_to_their_precision() -> None:
    exact = run(stages(1), packed_pairs(SAMPLES, 4)).item()
    rounded = run(stages(1, torch.bfloat16), packed_pairs(SAMPLES, 4))
    assert rounded.item() == pytest.approx(exact, rel=5e-2)


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

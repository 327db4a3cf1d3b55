"""Packed micro-batches of a GPT, against every document alone."""

from dataclasses import replace

import pytest
import torch
from tests.examples.decoder_pipelines import SAMPLES, TOKENS, WEIGHTS, run, stages_of
from tests.examples.run_stage import run_stage
from tests.examples.training_case import (
    SHAPE,
    START_ID,
    packed,
    padded,
    random_samples,
    unsplit_gradients,
)
from tests.oracles.plain_gpt import losses

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.decoder import DecoderStage


def stages(n_stages: int, dtype: torch.dtype = torch.float64) -> list[DecoderStage]:
    return stages_of(DecoderStage, SHAPE, n_stages, dtype)


@pytest.mark.parametrize("fill", [0, 7])
@pytest.mark.parametrize("n_stages", [1, 3])
def test_the_loss_is_the_sum_over_documents_written_out_alone(n_stages: int, fill: int) -> None:
    (whole,) = stages(1)
    weights = {name: p.detach().numpy() for name, p in whole.named_parameters()}
    expected = 0.0
    for sample in SAMPLES:
        inputs, targets = TOKENS.read(sample)
        own = [*inputs.tolist(), *targets.tolist()]
        of_labels = losses(weights, SHAPE.n_layers, SHAPE.n_heads, [START_ID, *own[:-1]], own)
        expected += WEIGHTS[sample.sample_id] * sum(of_labels[len(inputs) :])
    found = run(stages(n_stages), packed(SAMPLES, fill))
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mode", Recompute, ids=lambda mode: mode.text)
def test_gradients_are_the_sum_of_those_of_documents_alone(mode: Recompute) -> None:
    (together,), (apart,) = stages(1), stages(1)
    torch.autograd.backward(run([together], packed(SAMPLES, 3), mode))
    for sample in SAMPLES:
        torch.autograd.backward(run([apart], padded([sample])))
    expected = dict(apart.named_parameters())
    for name, weight in together.named_parameters():
        torch.testing.assert_close(weight.grad, expected[name].grad, rtol=1e-11, atol=1e-12)


def test_a_document_has_the_same_bits_whatever_its_neighbours_hold() -> None:
    pipeline = stages(2)
    found = []
    for neighbours in ((1, 4), (4, 1)):  # both 13 tokens long
        of_row = [TOKENS.samples[i] for i in (neighbours[0], 3, neighbours[1], 5)]
        activation = run(pipeline[:1], packed(of_row)).detach().requires_grad_()
        batch = pipeline[1].collate(packed(of_row), TOKENS)
        torch.autograd.backward(run_stage(pipeline[1], activation, batch))
        assert activation.grad is not None
        found.append((activation.detach()[:, 13:33], activation.grad[:, 13:33]))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("own", SAMPLES, ids=lambda sample: f"{sample.tokens} tokens")
def test_a_documents_loss_has_gradients_in_that_document_only(own: Sample) -> None:
    pipeline = stages(2)
    weights = dict.fromkeys(WEIGHTS, 0.0) | {own.sample_id: 1.0}
    gradients = []
    for samples in (SAMPLES, [own]):
        microbatch = packed(samples)
        activation = run(pipeline[:1], microbatch).detach().requires_grad_()
        batch = pipeline[1].collate(microbatch, replace(TOKENS, weights=weights))
        torch.autograd.backward(run_stage(pipeline[1], activation, batch))
        assert activation.grad is not None
        gradients.append(activation.grad[0])
    start = sum(s.tokens for s in SAMPLES if s.sample_id < own.sample_id)
    together, alone = gradients
    torch.testing.assert_close(together[start : start + own.tokens], alone, rtol=1e-11, atol=1e-13)
    together[start : start + own.tokens] = 0
    assert not together.any()


def test_stages_between_others_know_documents_and_read_no_tokens() -> None:
    first, middle, last = (stage.collate(packed(SAMPLES), TOKENS) for stage in stages(3))
    assert middle.context.documents is not None
    assert middle.context.documents.offsets == (0, 13, 14, 34, 47, 52)
    assert middle.tokens is None
    assert first.tokens is not None
    assert last.tokens is not None
    assert stages(3)[1].collate(padded(SAMPLES), TOKENS).context.documents is None


def test_sixteen_bits_give_the_loss_to_their_precision() -> None:
    exact = run(stages(1), packed(SAMPLES, 4)).item()
    rounded = run(stages(1, torch.bfloat16), packed(SAMPLES, 4))
    assert rounded.item() == pytest.approx(exact, rel=2e-2)


def test_samples_of_other_lengths_than_the_plan_says_are_refused() -> None:
    microbatch = replace(packed(SAMPLES), offsets=(0, 13, 15, 34, 47, 52))
    message = "sample 2 has 1 tokens, but offsets 13 and 15 of a packed row around it"
    with pytest.raises(ValueError, match=message):
        stages(1)[0].collate(microbatch, TOKENS)


def test_a_packed_batch_has_the_gradients_of_the_padded_one() -> None:
    samples = random_samples(3)
    found, expected = (unsplit_gradients(samples, lay(samples)) for lay in (packed, padded))
    assert found.losses == pytest.approx(expected.losses, rel=1e-12)
    for name, gradient in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], gradient, rtol=1e-10, atol=1e-14)

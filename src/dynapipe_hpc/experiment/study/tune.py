"""Predicted throughput of all variants of an experiment, from one dataset and one cost table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.place_layers import place_layers
from dynapipe_hpc.experiment.study.variants import Variant, variants


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is predicted of a variant.

    Attributes:
        variant: The variant.
        placement: Layers on its stages.
        tokens_per_s: Real tokens per second over all batches.
        iteration_ms: Mean time of an iteration in ms.
        real_share: Share of computed tokens that are real.
    """

    variant: Variant
    placement: Placement
    tokens_per_s: float
    iteration_ms: float
    real_share: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """A variant that cannot run.

    Attributes:
        variant: The variant.
        reason: Why it cannot run.
    """

    variant: Variant
    reason: str


def tune(files: ExperimentFiles, n_batches: int) -> Iterator[Prediction | Refusal]:
    """Plans the first batches of an experiment in every variant; nothing runs.

    Args:
        files: Files of the experiment.
        n_batches: Number of global batches to plan.

    Raises:
        InputError: A file cannot be used.
    """
    batches = [files.sampler.iteration(k) for k in range(n_batches)]
    for variant in variants(files.config):
        try:
            yield _predict(files.variant(variant.of(files.config)), variant, batches)
        except InputError as error:
            yield Refusal(variant, str(error))


def _predict(
    files: ExperimentFiles, variant: Variant, batches: Sequence[Sequence[Sample]]
) -> Prediction:
    placement = place_layers(files)
    planner = files.planner(placement)
    best = [planner.choose(samples).best for samples in batches]
    total_ms = sum(candidate.iteration_ms for candidate in best)
    real = sum(sample.tokens for samples in batches for sample in samples)
    microbatches = (m for candidate in best for p in candidate.pipelines for m in p.microbatches)
    return Prediction(
        variant,
        placement,
        tokens_per_s=1e3 * real / total_ms,
        iteration_ms=total_ms / len(batches),
        real_share=real / sum(m.padded_tokens for m in microbatches),
    )

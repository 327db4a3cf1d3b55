"""Predicted throughput of variants of an experiment, from one dataset and one cost table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.place_layers import place_layers
from dynapipe_hpc.experiment.study.variants import Variant


@dataclass(frozen=True, slots=True)
class VariantPrediction:
    """Prediction for a variant.

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


@dataclass(frozen=True, slots=True)
class Pruned:
    """A variant that was not planned because another one shows that it is not the fastest.

    Attributes:
        variant: The variant.
        reason: What the other one shows.
    """

    variant: Variant
    reason: str


Outcome = VariantPrediction | Refusal | Pruned


def predict(
    files: ExperimentFiles, variants: Iterable[Variant], n_batches: int
) -> Iterator[Outcome]:
    """Plans the first batches of an experiment in every variant; nothing runs.

    Variants that differ in nothing but the setting of a baseline and its one mode of recomputation
    may make each other needless, if they come in ascending order.

    Args:
        files: Files of the experiment.
        variants: The variants.
        n_batches: Number of global batches to plan.

    Raises:
        InputError: A file cannot be used.
    """
    batches = [files.sampler.iteration(k) for k in range(n_batches)]
    known: list[Outcome] = []
    for variant in variants:
        if reason := _why_needless(variant, known):
            known.append(Pruned(variant, reason))
        else:
            try:
                of_variant = files.variant(variant.of(files.config))
                known.append(_predict(of_variant, variant, batches))
            except InputError as error:
                known.append(Refusal(variant, str(error)))
        yield known[-1]


def _why_needless(variant: Variant, known: Sequence[Outcome]) -> str:
    """Evidence that a variant is not the fastest; empty if there is none.

    In a fixed order of passes the same micro-batches take longer with more recomputation. (Other
    schedules keep within memory by waiting, which more recomputation may save.) And micro-batches
    keep more the larger they are.
    """
    setting, modes = variant.setting, variant.planner.cost.recompute_modes
    is_fixed = set(variant.planner.schedule.chosen_rules) == {"1f1b"}
    for other in known:
        its_modes = other.variant.planner.cost.recompute_modes
        if (
            setting is None
            or other.variant.setting is None
            or not _is_alike(variant, other.variant)
        ):
            continue
        fits = isinstance(other, VariantPrediction) and other.variant.setting == setting
        if fits and is_fixed and its_modes < modes:
            return f"dominated: the same fits with recompute {its_modes[-1].text}"
        if isinstance(other, Refusal) and other.variant.setting < setting and its_modes == modes:
            smaller = f"{other.variant.setting:,} instead of {setting:,}"
            return f"larger: {smaller} cannot run either: {other.reason}"
    return ""


def _is_alike(one: Variant, two: Variant) -> bool:
    return (one.method, one.cluster) == (two.method, two.cluster)


def _predict(
    files: ExperimentFiles, variant: Variant, batches: Sequence[Sequence[Sample]]
) -> VariantPrediction:
    placement = place_layers(files)
    planner = files.planner(placement)
    best = [planner.choose(samples).best for samples in batches]
    total_ms = sum(candidate.iteration_ms for candidate in best)
    real = sum(sample.tokens for samples in batches for sample in samples)
    microbatches = (m for candidate in best for p in candidate.pipelines for m in p.microbatches)
    return VariantPrediction(
        variant,
        placement,
        tokens_per_s=1e3 * real / total_ms,
        iteration_ms=total_ms / len(batches),
        real_share=real / sum(m.padded_tokens for m in microbatches),
    )

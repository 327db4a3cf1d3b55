"""A plan as text, to look at before anything runs."""

from collections.abc import Iterator, Sequence

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.source import open_source
from dynapipe_hpc.plan.memory import peak_bytes
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.plan.text import grid


def show_plan(config: ExperimentConfig, iteration: int) -> str:
    """Plans an iteration and describes it: costs, micro-batches, prediction, instructions.

    Raises:
        InputError: A file cannot be used, or a sample cannot run.
    """
    source = open_source(config)
    samples = source.sampler.iteration(iteration)
    plans = source.planner.make_plans(iteration, samples)
    return "\n".join(
        [
            f"costs {source.planner.cost.description}",
            *_summary(samples, plans),
            *_microbatches(plans),
            *_ranks(plans),
            grid(plans),
        ]
    )


def _summary(samples: Sequence[Sample], plans: Sequence[RankPlan]) -> Iterator[str]:
    real = sum(sample.tokens for sample in samples)
    padded = sum(m.padded_tokens for plan in plans if plan.stage == 0 for m in plan.microbatches)
    yield f"iteration {plans[0].iteration}: {len(samples)} samples, {real:,} real tokens"
    yield f"padding efficiency {100 * real / padded:.1f} %"
    yield f"predicted {plans[0].prediction.iteration_ms:,.1f} ms"


def _microbatches(plans: Sequence[RankPlan]) -> Iterator[str]:
    for plan in plans:
        if plan.stage == 0:
            shapes = "  ".join(
                f"{i}:{m.n_rows}x{m.row_tokens}" for i, m in enumerate(plan.microbatches)
            )
            yield f"replica {plan.replica}, micro-batches (rows x tokens): {shapes}"


def _ranks(plans: Sequence[RankPlan]) -> Iterator[str]:
    for plan in plans:
        busy_ms = sum(end - start for start, end in plan.prediction.passes_ms)
        yield (
            f"rank {plan.rank} (replica {plan.replica}, stage {plan.stage}): "
            f"{busy_ms:,.1f} ms busy, peak {peak_bytes(plan) / 1e6:,.1f} MB "
            f"of {plan.memory.limit / 1e6:,.1f} MB"
        )

"""Loss weighting: the weight of every target token in the loss of a global batch."""

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.training.config import LossWeighting


def token_weights(samples: Sequence[Sample], weighting: LossWeighting) -> dict[int, float]:
    """Weight of each target token, so that the weighted sum over a batch is its loss.

    The weights of all target tokens of the batch add up to one. They depend on the global batch
    only, so the loss does not depend on how the batch is split.

    Args:
        samples: Samples of the global batch.
        weighting: Unit of equal weight. "token": all target tokens. "sample": all samples, and
            all tokens within a sample. "task": all tasks in the batch, and all tokens within a
            task.

    Returns:
        Weight of each target token of a sample, by sample id.
    """
    match weighting:
        case "token":
            total = sum(s.target_tokens for s in samples)
            return {s.sample_id: 1 / total for s in samples}
        case "sample":
            return {s.sample_id: 1 / (len(samples) * s.target_tokens) for s in samples}
        case "task":
            totals = _target_tokens_of_tasks(samples)
            return {s.sample_id: 1 / (len(totals) * totals[s.task_id]) for s in samples}
        case _:
            assert_never(weighting)


def _target_tokens_of_tasks(samples: Sequence[Sample]) -> Counter[int]:
    totals: Counter[int] = Counter()
    for sample in samples:
        totals[sample.task_id] += sample.target_tokens
    return totals

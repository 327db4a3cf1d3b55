"""Loss weighting: the weight of every trained token in the loss of a global batch."""

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.trained_tokens import TARGETS, TrainedTokens
from dynapipe_hpc.training.config import LossWeighting


def token_weights(
    samples: Sequence[Sample], weighting: LossWeighting, trained: TrainedTokens = TARGETS
) -> dict[int, float]:
    """Weight of each trained token, so that the weighted sum over a batch is its loss.

    The weights of all trained tokens of the batch add up to one. They depend on the global batch
    only, so the loss does not depend on how the batch is split. A preference pair counts as one
    token, as its loss is one number.

    Args:
        samples: Samples of the global batch.
        weighting: Unit of equal weight. "token": all trained tokens. "sample": all samples, and
            all tokens within a sample. "task": all tasks in the batch, and all tokens within a
            task.
        trained: The tokens that are trained.

    Returns:
        Weight of each trained token of a sample, or of a preference pair, by sample id.
    """
    counts = {s.sample_id: 1 if s.is_pair else trained.count(s) for s in samples}
    match weighting:
        case "token":
            total = sum(counts[s.sample_id] for s in samples)
            return {s.sample_id: 1 / total for s in samples}
        case "sample":
            return {s.sample_id: 1 / (len(samples) * counts[s.sample_id]) for s in samples}
        case "task":
            totals: Counter[int] = Counter()
            for s in samples:
                totals[s.task_id] += counts[s.sample_id]
            return {s.sample_id: 1 / (len(totals) * totals[s.task_id]) for s in samples}
        case _:
            assert_never(weighting)

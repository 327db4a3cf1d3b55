"""Training on preference pairs, and the same by a plain loop over separate copies of prompts."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, pairwise

import numpy as np
import torch
from tests.examples.pipeline_training import train
from tests.examples.planned_iteration import planned_iteration
from tests.examples.training_case import (
    MAX_TOKENS,
    SHAPE,
    START_ID,
    Outcome,
    RandomTokens,
    Rank,
    make_rank,
    over_replicas,
)
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import PackedRow, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.data.token_block import SampleTokens
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.family import StageOfFamily
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import PreferenceLossConfig
from dynapipe_hpc.training.objective import PreferenceLoss

ALONE = Cluster(device_memory_bytes=1)
N_PAIRS = 8
DPO = PreferenceLossConfig("dpo", 0.3)


def random_pairs(seed: int, n: int = N_PAIRS) -> list[Sample]:
    """Pairs numbered from `N_PAIRS * seed` on; some without prompt, some with one-token answers."""
    stream = np.random.default_rng(seed)
    pairs = []
    for i in range(n):
        prompt = int(stream.integers(0, MAX_TOKENS // 2)) if i else 0
        most = MAX_TOKENS - prompt
        chosen, rejected = (int(stream.integers(1, most // 2 + 1)) for _ in range(2))
        chosen = 1 if i == 1 else chosen
        pairs.append(Sample(N_PAIRS * seed + i, prompt, chosen, i % 3, rejected))
    return pairs


def references_of(n_samples: int) -> Tensor:
    """Made-up log-probabilities of answers by a reference model, shape (n_samples, 2)."""
    stream = torch.Generator().manual_seed(3)
    return -10 * torch.rand(n_samples, 2, dtype=torch.float64, generator=stream)


def split_pairs(
    pairs: Sequence[Sample], n_parts: int, seed: int, modes: Sequence[Recompute]
) -> list[PackedRow]:
    """Cuts pairs at random into packed rows."""
    stream = np.random.default_rng(seed)
    order = stream.permutation(len(pairs)).tolist()
    cuts = np.sort(stream.choice(np.arange(1, len(pairs)), n_parts - 1, replace=False))
    parts = [[pairs[i] for i in order[a:b]] for a, b in pairwise([0, *cuts.tolist(), len(pairs)])]
    return [packed_microbatch(part, mode) for part, mode in zip(parts, cycle(modes), strict=False)]


def preference_steps(
    cluster: Cluster,
    batches: Sequence[Sequence[Sample]],
    config: PreferenceLossConfig = DPO,
    modes: Sequence[Recompute] = (Recompute.NONE,),
    *,
    shape: ModelShape = SHAPE,
    schedule: str = "1f1b",
    n_parts: int = 5,
) -> Outcome:
    """The weights after a step on each batch, split at random into micro-batches."""
    iterations = []
    for k, pairs in enumerate(batches):
        replicas = over_replicas(split_pairs(pairs, n_parts, k, modes), cluster.n_replicas)
        plans = planned_iteration(replicas, cluster, shape, schedule, iteration=k)
        iterations.append((pairs, plans))
    references = references_of(N_PAIRS * (1 + len(batches)))
    return train(
        cluster,
        iterations,
        Rank.weights,
        shape=shape,
        objective=lambda: PreferenceLoss(config, references),
    )


class Answer:
    """Reads one answer of a pair behind a copy of its prompt, as a plain sample."""

    def __init__(self, pair: Sample, *, rejected: bool) -> None:
        self.prompt, chosen, other, _ = RandomTokens()(pair)
        self.answer = other if rejected else chosen

    def __call__(self, sample: Sample) -> SampleTokens:
        return SampleTokens(self.prompt, self.answer, self.answer[:0], sample.sample_id)


def answer_log_prob(module: StageOfFamily, answer: Answer, start_id: int = START_ID) -> Tensor:
    """Sum of the log-probabilities of an answer's tokens."""
    sample = Sample(0, len(answer.prompt), len(answer.answer))
    tokens = IterationTokens(
        {0: sample}, {0: 1.0}, lambda sample: answer(sample)._replace(start=start_id), start_id
    )
    batch = module.collate(PaddedRows((0,), sample.tokens), tokens)
    losses = module.run(None, batch, Recompute.NONE)
    return -losses[0, len(answer.prompt) : sample.tokens].sum()


Loss = Callable[[Tensor, Tensor, Sample], Tensor]
"""Loss of a pair by the log-ratios of its answers, written out."""


def written_out(config: PreferenceLossConfig) -> Loss:
    """The loss by its formula."""

    def loss(chosen: Tensor, rejected: Tensor, pair: Sample) -> Tensor:
        if config.per_token:
            chosen, rejected = chosen / pair.target_tokens, rejected / pair.rejected_tokens
        margin = chosen - rejected
        if config.objective == "ipo":
            return (margin - 0.5 / config.beta) ** 2
        preferred = 1 / (1 + torch.exp(-config.beta * margin))
        smoothing = config.label_smoothing
        return -(1 - smoothing) * preferred.log() - smoothing * (1 - preferred).log()

    return loss


def plain_steps(
    batches: Sequence[Sequence[Sample]],
    config: PreferenceLossConfig = DPO,
    shape: ModelShape = SHAPE,
    weights: Mapping[int, float] | None = None,
) -> Outcome:
    """The same by one process that runs every answer behind a prompt of its own."""
    rank = make_rank(ALONE, 0, SingleRankCollectives(), shape=shape)
    references = references_of(N_PAIRS * (1 + len(batches)))
    loss_of = written_out(config)
    outcome = Outcome([], [], {})
    for pairs in batches:
        total = torch.zeros((), dtype=torch.float64)
        for pair in pairs:
            log_probs = [
                answer_log_prob(rank.module, Answer(pair, rejected=side)) for side in (False, True)
            ]
            ratios = [
                own - reference
                for own, reference in zip(log_probs, references[pair.sample_id], strict=True)
            ]
            loss = loss_of(ratios[0], ratios[1], pair)
            loss = loss - config.sft_weight * log_probs[0] / pair.target_tokens
            total = total + loss * (weights[pair.sample_id] if weights else 1 / len(pairs))
        total.backward()  # type: ignore[no-untyped-call]
        rank.stage.step_optimizer()
        report = rank.stage.finish_iteration()
        outcome.losses.append(total.item())
        outcome.norms.append(report.gradient_norm)
    outcome.tensors = rank.weights()
    return outcome

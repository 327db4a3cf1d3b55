"""Objectives combine the losses of tokens: by weight, by sample, or by pairs of answers."""

import math

import numpy as np
import pytest
import torch
from tests.examples.preference_training import (
    ALONE,
    DPO,
    Answer,
    answer_log_prob,
    random_pairs,
    references_of,
)
from tests.examples.training_case import SHAPE, RandomTokens, make_rank

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import Branch, PaddedRows, Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.models.batch import NO_SAMPLE, IterationTokens, Labels, collate
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.packed_shapes import packed_microbatch
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import LossWeighting, PreferenceLossConfig, PreferenceObjective
from dynapipe_hpc.training.objective import (
    PreferenceLoss,
    SampleLosses,
    losses_of_tables,
    weighted_tokens,
)
from dynapipe_hpc.training.token_loader import token_weights

IDS = torch.zeros(2, 4, dtype=torch.int64)  # objectives do not read them
WEIGHTS = torch.tensor([[0, 0.5, 0.25, 0], [0.25, 0, 2, 0]], dtype=torch.float64)
SAMPLE_IDS = torch.tensor([[7, 7, 3, NO_SAMPLE], [9, 9, 9, NO_SAMPLE]])
LABELS = Labels(IDS, WEIGHTS, SAMPLE_IDS)
LOSSES = torch.tensor([[1.0, 2, 3, 5], [8, 13, 21, 34]])
SAMPLES = [Sample(9, 1, 2), Sample(4, 0, 1), Sample(7, 1, 1), Sample(3, 0, 1)]


def test_the_weighted_loss_and_its_gradient_are_those_of_trained_tokens() -> None:
    losses = LOSSES.clone().requires_grad_()
    loss = weighted_tokens(losses, LABELS)
    assert loss.dtype == torch.float32
    assert loss.item() == 0.5 * 2 + 0.25 * 3 + 0.25 * 8 + 2 * 21
    torch.autograd.backward(3 * loss)
    assert losses.grad is not None
    assert losses.grad.tolist() == (3 * WEIGHTS).tolist()


def test_losses_of_samples_are_in_their_order_and_count_trained_tokens_once() -> None:
    table = SampleLosses(SAMPLES, torch.device("cpu")).loss(LOSSES, LABELS)
    assert table.tolist() == [[8 + 21, 0, 2, 3], [2, 0, 1, 1]]


def test_what_is_not_trained_leaves_the_losses_of_samples_finite() -> None:
    losses = LOSSES.where(WEIGHTS > 0, math.inf)
    table = SampleLosses(SAMPLES, torch.device("cpu")).loss(losses, LABELS)
    assert table[0].tolist() == [8 + 21, 0, 2, 3]


LOSS_SAMPLES = [
    Sample(0, 5, 1, task_id=0), Sample(1, 0, 3, task_id=0), Sample(2, 9, 4, task_id=7),
]  # fmt: skip


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("token", {0: 1 / 8, 1: 1 / 8, 2: 1 / 8}),
        ("sample", {0: 1 / 3, 1: 1 / 9, 2: 1 / 12}),
        ("task", {0: 1 / 8, 1: 1 / 8, 2: 1 / 8}),
    ],
)
def test_a_token_weighs_as_what_counts_alike(
    weighting: LossWeighting, expected: dict[int, float]
) -> None:
    assert token_weights(LOSS_SAMPLES, weighting) == expected


def test_a_sample_that_comes_twice_counts_twice() -> None:
    weights = token_weights([LOSS_SAMPLES[0], LOSS_SAMPLES[0], LOSS_SAMPLES[1]], "token")
    assert weights == {0: 1 / 5, 1: 1 / 5}


LOG_PROBS = np.array([[-3.0, -5.0], [-4.0, -2.0]])
REFERENCES = np.array([[-4.0, -4.0], [-4.0, -4.0]])
LENGTHS = [(2, 4), (1, 2)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (PreferenceLossConfig("dpo", 0.5), [-math.log(sigmoid(1.0)), -math.log(sigmoid(-1.0))]),
        (
            PreferenceLossConfig("dpo", 0.5, label_smoothing=0.1),
            [
                -0.9 * math.log(sigmoid(1.0)) - 0.1 * math.log(sigmoid(-1.0)),
                -0.9 * math.log(sigmoid(-1.0)) - 0.1 * math.log(sigmoid(1.0)),
            ],
        ),
        (PreferenceLossConfig("ipo", 0.5), [(2.0 - 1) ** 2, (-2.0 - 1) ** 2]),
        # Log-ratios per token: 1/2 and -1/4; 0 and 1.
        (PreferenceLossConfig("ipo", 0.5, per_token=True), [(0.75 - 1) ** 2, (-1.0 - 1) ** 2]),
        (
            PreferenceLossConfig("dpo", 0.5, sft_weight=2.0),
            [-math.log(sigmoid(1.0)) + 2 * 1.5, -math.log(sigmoid(-1.0)) + 2 * 4.0],
        ),
    ],
    ids=["dpo", "smoothed", "ipo", "ipo per token", "sft"],
)
def test_losses_are_those_of_formulas(config: PreferenceLossConfig, expected: list[float]) -> None:
    losses, _ = losses_of_tables(LOG_PROBS, REFERENCES, LENGTHS, config)
    assert losses == pytest.approx(expected)


@pytest.mark.parametrize("objective", ["dpo", "ipo"])
@pytest.mark.parametrize("per_token", [False, True])
def test_numbers_are_sums_over_pairs_and_of_complete_answers_in_every_loss(
    objective: PreferenceObjective, *, per_token: bool
) -> None:
    config = PreferenceLossConfig(objective, 0.5, per_token=per_token)
    _, numbers = losses_of_tables(LOG_PROBS, REFERENCES, LENGTHS, config)
    assert numbers._asdict() == pytest.approx(
        {
            "chosen_reward": 0.5 * (1 + 0),
            "rejected_reward": 0.5 * (-1 + 2),
            "accuracy": 1,
            "chosen_log_prob": -7,
            "rejected_log_prob": -7,
            "kl": ((1 + 1) / 2 + (0 + 4) / 2) / 2,
        }
    )


def test_pairs_weigh_alike_whatever_their_lengths_or_the_tasks_do() -> None:
    pairs = [Sample(i, 3, 1 + i, i % 2, 2) for i in range(3)]
    equal = {pair.sample_id: pytest.approx(1 / 3) for pair in pairs}
    assert token_weights(pairs, "token") == token_weights(pairs, "sample") == equal
    assert token_weights(pairs, "task") == {0: 0.25, 1: 0.5, 2: 0.25}


def test_the_numbers_of_an_iteration_are_taken_once() -> None:
    pairs = random_pairs(1)
    references = references_of(16)
    rank = make_rank(
        ALONE, 0, SingleRankCollectives(), shape=SHAPE, objective=PreferenceLoss(DPO, references)
    )
    rank.tokens.start_iteration(pairs)
    rows = [
        packed_microbatch(pairs[:3], Recompute.NONE),
        packed_microbatch(pairs[3:], Recompute.NONE),
    ]
    for i, row in enumerate(rows):
        rank.stage.load(i, row)
        rank.stage.forward(i, None)
    report = rank.stage.finish_iteration()
    log_probs = [
        [answer_log_prob(rank.module, Answer(pair, rejected=side)).item() for side in (False, True)]
        for pair in pairs
    ]
    lengths = [(pair.target_tokens, pair.rejected_tokens) for pair in pairs]
    known = references[[pair.sample_id for pair in pairs]].numpy()
    losses, numbers = losses_of_tables(np.array(log_probs), known, lengths, DPO)
    assert report.loss == pytest.approx(losses.mean(), rel=1e-12)
    assert report.preferences == pytest.approx(numbers, rel=1e-11)
    assert rank.stage.finish_iteration().preferences == (0.0,) * len(numbers)


@pytest.mark.parametrize("mode", list(Recompute), ids=lambda mode: mode.text)
def test_a_row_of_pairs_keeps_what_plans_count_on(mode: Recompute) -> None:
    sizes = {"n_layers": 3, "hidden_size": 64, "ffn_size": 256, "max_tokens": 512}
    shape = SHAPE.model_copy(update=sizes)
    pairs = [Sample(i, 128, 64, 0, 64) for i in range(3)]
    row = packed_microbatch(pairs, mode)
    config = AnalyticConfig(element_bytes=8, recompute=("none", "selective", "full"))
    cost = analytic_cost(shape, Placement((3,)), ALONE, config)
    objective = PreferenceLoss(DPO, references_of(3))
    rank = make_rank(ALONE, 0, SingleRankCollectives(), shape=shape, objective=objective)
    rank.tokens.start_iteration(pairs)
    kept = rank.stage.run_alone(row, None, split_backward=False)
    planned = microbatch_costs([row], cost).stored_bytes[0, 0]
    assert kept == pytest.approx(planned, rel=0.05)


def tokens_of(*pairs: Sample) -> IterationTokens:
    by_id = {pair.sample_id: pair for pair in pairs}
    weights = dict.fromkeys(by_id, 0.5)
    return IterationTokens(by_id, weights, RandomTokens(), 30)


def test_pairs_in_other_rows_are_refused() -> None:
    pair = Sample(7, 2, 1, rejected_tokens=3)
    with pytest.raises(ValueError, match="in a micro-batch that is no packed row of pairs"):
        collate(PaddedRows((7,), 8), tokens_of(pair))
    row = packed_microbatch([Sample(7, 1, 2, rejected_tokens=3)], Recompute.NONE)
    assert row.branches == (Branch(3, 1),)
    with pytest.raises(ValueError, match="the plan was made for other samples"):
        collate(row, tokens_of(pair))

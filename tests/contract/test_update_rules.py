"""Contract of every rule that updates weights, see `UpdateRule`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dynapipe_hpc.training.adafactor import Adafactor
from dynapipe_hpc.training.adamw import AdamW
from dynapipe_hpc.training.collectives import SingleRankCollectives
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.flat_parameters import FlatParameters
from dynapipe_hpc.training.update_rule import UpdateRule

GOES, IS_SKIPPED = torch.tensor(0.0), torch.tensor(1.0)
Make = Callable[[FlatParameters, TrainingConfig], UpdateRule]


def adamw(flat: FlatParameters, config: TrainingConfig) -> UpdateRule:
    return AdamW(flat.weights, flat.gradients, flat.n_decaying, config)


def adafactor(flat: FlatParameters, config: TrainingConfig) -> UpdateRule:
    shards = SingleRankCollectives()
    return Adafactor(
        flat.weights,
        flat.gradients,
        flat.views,
        n_matrices=flat.n_decaying,
        config=config,
        shards=shards,
    )


each_rule = pytest.mark.parametrize("make", [adamw, adafactor])


class Case:
    """A small module with a rule that updates it."""

    def __init__(self, make: Make, **changes: object) -> None:
        torch.manual_seed(2)
        module = nn.Linear(5, 3)
        self.flat = FlatParameters(module)
        config = TrainingConfig(iterations=9).model_copy(update=changes)
        self.rule = make(self.flat, config)

    def update(self, step: int, skips: Tensor = GOES) -> None:
        self.flat.gradients.copy_(torch.arange(len(self.flat.gradients)).add(step).sin())
        self.rule.update(0.01, skips)

    def everything(self) -> list[Tensor]:
        held = [*self.rule.tensors, *(factor.values for factor in self.rule.factors())]
        return [tensor.clone() for tensor in held]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@each_rule
def test_a_skipped_update_changes_nothing(make: Make) -> None:
    case = Case(make)
    case.update(0)
    before = case.everything()
    for number in (float("nan"), float("inf")):
        case.flat.gradients.fill_(number)
        case.rule.update(0.01, IS_SKIPPED)
    assert same(case.everything(), before)
    assert case.rule.n_updates == 1
    case.update(1)
    assert case.rule.n_updates == 2
    assert not same(case.everything(), before)


@each_rule
def test_state_and_number_of_updates_are_all_there_is(make: Make) -> None:
    case, other = Case(make), Case(make)
    for step in range(3):
        case.update(step)
    for kind, segment in case.rule.state(0).items():
        other.rule.state(0)[kind].values.copy_(segment.values)
    for factor, its in zip(case.rule.factors(), other.rule.factors(), strict=True):
        assert (factor.kind, factor.view) == (its.kind, its.view)
        its.values.copy_(factor.values)
    other.rule.n_updates = case.rule.n_updates
    for each in (case, other):
        each.update(3)
    assert same(case.everything(), other.everything())


@each_rule
@pytest.mark.parametrize("decay", ["matrices", "all"])
def test_without_gradients_weights_only_decay(make: Make, decay: str) -> None:
    case = Case(make, decay=decay, weight_decay=0.5)
    before, n = case.flat.weights.clone(), case.flat.n_decaying
    case.flat.gradients.zero_()
    case.rule.update(0.01, GOES)
    torch.testing.assert_close(case.flat.weights[:n], 0.995 * before[:n])
    rest = 0.995 if decay == "all" else 1.0
    torch.testing.assert_close(case.flat.weights[n:], rest * before[n:])

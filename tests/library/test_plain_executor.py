"""The plain executor trains what the unsplit model would."""

import pytest
import torch
from torch import nn

from dynapipe_hpc import Cluster, FunctionCost, plan_iteration
from plain_executor import DecoderStage, execute

WIDTH, N_IDS = 8, 23
LENGTHS = [3, 30, 9, 17, 12, 5, 26, 8, 14, 11]


def stages_of(n_stages: int) -> list[DecoderStage]:
    """A model of four layers; the same weights for any number of stages."""
    torch.manual_seed(1)
    whole = DecoderStage(4, WIDTH, N_IDS, is_first=True, is_last=True).double()
    each = 4 // n_stages
    stages = []
    for number in range(n_stages):
        first, last = number == 0, number == n_stages - 1
        stage = DecoderStage(each, WIDTH, N_IDS, is_first=first, is_last=last).double()
        stage.layers = whole.layers[number * each : (number + 1) * each]
        stage.embedding = whole.embedding if first else None
        stage.head = whole.head if last else None
        stages.append(stage)
    return stages


def gradients(stages: list[DecoderStage]) -> list[torch.Tensor]:
    found = [parameter.grad for stage in stages for parameter in stage.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient for gradient in found if gradient is not None]


def of_whole_model(sequences: list[torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients sample by sample, without rows, padding or stages."""
    (model,) = stages_of(1)
    n_targets = sum(len(ids) - 1 for ids in sequences)
    total = 0.0
    for ids in sequences:
        logits = model(ids[None])[0, :-1]
        loss = nn.functional.cross_entropy(logits, ids[1:], reduction="sum") / n_targets
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return total, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("n_replicas", "n_stages"), [(1, 1), (1, 4), (2, 2), (3, 1)])
def test_gradients_are_those_of_the_unsplit_model(n_replicas: int, n_stages: int) -> None:
    sequences = [torch.randint(N_IDS, (length,)) for length in LENGTHS]
    cost = FunctionCost(
        lambda n, m: 1 + 0.05 * n * m,
        lambda n, m: n * m,
        (1 / n_stages,) * n_stages,
        hidden_size=WIDTH,
    )
    cluster = Cluster(n_replicas=n_replicas, n_stages=n_stages, device_memory_bytes=96)
    plans = plan_iteration(LENGTHS, cost, cluster)
    assert max(len(plan.microbatches) for plan in plans) > 1
    replicas = [stages_of(n_stages) for _ in range(n_replicas)]
    stages = [stage for replica in replicas for stage in replica]
    stepped: list[int] = []
    steps = [lambda rank=rank: stepped.append(rank) for rank in range(len(stages))]
    loss = execute(plans, stages, sequences, steps)
    expected_loss, expected = of_whole_model(sequences)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    assert sorted(stepped) == list(range(len(stages)))
    for replica in replicas:
        found = gradients(replica)
        for gradient, name in zip(found, ordered(expected, n_stages), strict=True):
            torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-14)


def ordered(expected: dict[str, torch.Tensor], n_stages: int) -> list[str]:
    """Names of the unsplit model in the order of the stages' parameters."""
    if n_stages == 1:
        return list(expected)
    layers = [name for name in expected if name.startswith("layers")]
    head = [name for name in expected if name.startswith("head")]
    return ["embedding.weight", *layers, *head]


def test_plans_that_never_end_are_noticed() -> None:
    cost = FunctionCost(lambda n, m: n * m, stage_shares=(0.5, 0.5), hidden_size=WIDTH)
    plans = plan_iteration([9, 5], cost, Cluster(n_stages=2, device_memory_bytes=9))
    sequences = [torch.randint(N_IDS, (n,)) for n in (9, 5)]
    with pytest.raises(RuntimeError, match=r"ranks \[1\] wait for each other"):
        execute(plans[1:], stages_of(2)[1:], sequences, [lambda: None])

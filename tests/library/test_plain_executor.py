"""Plans that other executors run, one of this repository and torch's own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.pipelining.schedules import _Action, _simulate_comms_compute

from dynapipe_hpc import Cluster, FunctionCost, plan_iteration
from pipelining_schedule import schedule_rows
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


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("n_stages", [1, 2, 4])
def test_schedules_end_in_the_simulation_of_torch(n_stages: int) -> None:
    cost = FunctionCost(lambda n, m: 1 + n * m, stage_shares=(1 / n_stages,) * n_stages)
    lengths = list(range(8, 400, 9))
    plans = plan_iteration(lengths, cost, Cluster(n_stages=n_stages, device_memory_bytes=9))
    rows = schedule_rows(plans)
    actions = {rank: [_Action.from_str(each) for each in row] for rank, row in enumerate(rows)}
    _simulate_comms_compute(actions, lambda stage: stage, n_stages)
    n_microbatches = len(plans[0].microbatches)
    n_transfers = 4 * (n_stages - 1)
    assert sum(map(len, rows)) == n_microbatches * (2 * n_stages + n_transfers)


@pytest.mark.slow
def test_stages_have_the_gradients_of_the_unsplit_model(tmp_path: Path) -> None:
    paths = [str(ROOT), str(ROOT / "examples")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.library.pipelining_rank"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), "2", str(tmp_path / "store")],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)

"""Plans that other executors run, one of this repository and torch's own."""

import contextlib
import heapq
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.library.two_processes import check_two_processes
from torch import nn
from torch.distributed.pipelining.schedules import _Action, _simulate_comms_compute

import dynapipe_hpc
from balanced_rl_batches import balanced_batches, cut, transformer_cost
from dynapipe_hpc import Cluster, FunctionCost, InputError, plan_iteration
from dynapipe_hpc.plan.instruction import Backward, Forward
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
    check_two_processes("tests.library.pipelining_rank", tmp_path / "store")


PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("heading", ["Lengths to plans", "What a plan says"])
def test_the_example_prints_what_is_below_it(heading: str) -> None:
    blocks = re.findall(r"^```(?:python)?\n(.*?)^```$", section(heading), re.MULTILINE | re.DOTALL)
    example, shown, *_ = blocks
    assert len(list(filter(None, example.splitlines()))) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "library.md", "exec"), {})  # noqa: S102 - our own file
    assert printed.getvalue() == shown


def test_every_public_name_is_in_the_table_of_parts() -> None:
    first_cells = re.findall(r"^\| (`.*?) \|", section("Parts"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", "".join(first_cells))) == sorted(dynapipe_hpc.__all__)


def test_every_example_is_described() -> None:
    described = re.findall(r"^\| `examples/(.*?)` \|", section("Examples"), re.MULTILINE)
    files = [path.name for path in (ROOT / "examples").iterdir() if path.is_file()]
    assert sorted(described) == sorted(files)


NOTEBOOK = Path(__file__).parents[2] / "examples" / "plan_and_draw.ipynb"


def test_every_pass_of_the_plans_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib").use("agg")
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)  # noqa: S102 - ours
    drawn = [(box.get_x(), box.get_x() + box.get_width()) for box in names["axes"].patches]
    plans = names["plans"]
    planned = sorted(each for plan in plans for each in plan.prediction.passes_ms)
    assert np.array(sorted(drawn)) == pytest.approx(np.array(planned))
    n_passes = sum(isinstance(each, Forward | Backward) for p in plans for each in p.instructions)
    assert len(drawn) == n_passes == 8 * len(plans[0].microbatches)
    assert "rank 0 |" in capsys.readouterr().out
    names["plt"].close(names["figure"])


COST = transformer_cost(hidden_size=64, n_layers=2, launch_tokens=30)
MAX_TOKENS = 2048


def rank_time(rank: list[list[int]], lengths: list[int]) -> float:
    """Work by hand: packed sequences attend only to themselves."""
    works = [sum(lengths[i] * (1 + lengths[i] / 384) for i in each) for each in rank]
    return sum(2 * (30 + work) for work in works if work)


def rollouts(seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(length) for length in random.lognormal(np.log(300), 0.9, 96).clip(10, 2040)]


def longest_first(lengths: list[int], n_ranks: int) -> float:
    """Slowest rank where sequences go, longest first, to the rank with fewest tokens."""
    ranks: list[tuple[int, int, list[list[int]]]] = [(0, rank, [[]]) for rank in range(n_ranks)]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        tokens, rank, batches = heapq.heappop(ranks)
        if sum(lengths[j] for j in batches[-1]) + lengths[i] > MAX_TOKENS:
            batches.append([])
        batches[-1].append(i)
        heapq.heappush(ranks, (tokens + lengths[i], rank, batches))
    return max(rank_time(batches, lengths) for _, _, batches in ranks)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("equal_counts", [False, True])
def test_ranks_have_every_sequence_once_within_the_limit(seed: int, equal_counts: bool) -> None:
    lengths = rollouts(seed)
    ranks = balanced_batches(lengths, 4, MAX_TOKENS, COST, equal_counts=equal_counts)
    assert sorted(i for rank in ranks for each in rank for i in each) == list(range(96))
    assert all(sum(lengths[i] for i in each) <= MAX_TOKENS for rank in ranks for each in rank)
    if equal_counts:
        assert len({len(rank) for rank in ranks}) == 1
        assert all(each for rank in ranks for each in rank)


@pytest.mark.parametrize("seed", range(3))
def test_ranks_end_sooner_than_with_equal_numbers_of_tokens(seed: int) -> None:
    lengths = rollouts(seed)
    ranks = balanced_batches(lengths, 4, MAX_TOKENS, COST)
    times = [rank_time(rank, lengths) for rank in ranks]
    assert min(times) > 0.98 * max(times)
    assert max(times) < longest_first(lengths, 4)


def test_the_largest_micro_batches_are_cut_in_halves_of_tokens() -> None:
    lengths = [600, 300, 200, 100, 1000]
    rank = [[4], [1, 0, 3, 2]]
    cut(rank, 3, lengths)
    assert rank == [[4], [0], [1, 2, 3]]
    cut(rank, 4, lengths)
    assert rank == [[4], [0], [1], [2, 3]]


def test_what_cannot_be_balanced_is_refused() -> None:
    with pytest.raises(InputError, match=r"lengths has 1 sequences for 2 ranks"):
        balanced_batches([5], 2, 100, COST)
    with pytest.raises(InputError, match=r"sample 1 .* needs 104 bytes on stage 0"):
        balanced_batches([5, 101], 2, 100, COST)

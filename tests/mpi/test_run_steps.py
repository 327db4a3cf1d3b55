"""Steps of a run between ranks: their connections, plans, reports and the doctor."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from mpi4py import MPI
from tests.jobs.tiny_experiment import tiny_experiment

from cluster.steps_of_a_rank import KINDS, counted_calls, iterate, of_all
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.doctor.examine import Case, examine
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.iteration import IterationResult, all_reduce_fields
from dynapipe_hpc.experiment.run.plans import check_same_plans
from dynapipe_hpc.experiment.study.simulate import simulate
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.ranks import Alone

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, N_RANKS = WORLD.Get_rank(), WORLD.Get_size()


@pytest.mark.parametrize("number", [0, 7, 2**64 - 1])
def test_ranks_with_plans_of_one_planning_go_on(number: int) -> None:
    check_same_plans(Job(WORLD), 3, number)


@pytest.mark.skipif(N_RANKS < 2, reason="needs at least 2 ranks")
@pytest.mark.parametrize("numbers", [(2**64 - 1, 0), (0, 2**64 - 1), (5, 4), (4, 5)])
def test_one_other_number_is_noticed_on_all_ranks(numbers: tuple[int, int]) -> None:
    own = numbers[RANK == N_RANKS - 1]
    assert not Job(WORLD).is_same_on_all(own)


@pytest.mark.skipif(N_RANKS < 2, reason="needs at least 2 ranks")
def test_a_rank_with_a_plan_of_another_planning_ends_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    last = N_RANKS - 1
    with pytest.raises(SystemExit) as raised:
        check_same_plans(Job(WORLD), 3, 2**63 + 1 if last == RANK else 0xABC)
    assert raised.value.code == 1
    told = (
        f"dynapipe-hpc: iteration 3: the plan of rank {last} belongs to plans with hash "
        "8000000000000001, that of rank 0 to plans with hash 0000000000000abc; they cannot be "
        "executed together; start the run again\n"
    )
    assert capsys.readouterr().err == (told if RANK == 0 else "")


N_ITERATIONS = 3  # by two methods: one rank of four has less to do


def small_study() -> ExperimentConfig:
    tables = tiny_experiment(n_stages=2).model_dump(exclude_none=True)
    del tables["data"]["dataset"]
    tables["data"] |= {"lengths": {"n_samples": 100}, "long_samples": "cut_targets"}
    tables["training"]["iterations"] = N_ITERATIONS
    naive = {"name": "naive", "planner": {"batch": {"rule": "naive_padding"}}}
    methods = [naive, {"name": "ours", "planner": {"search": {"effort": 1000}}}]
    return ExperimentConfig.model_validate({**tables, "study": {"methods": methods}})


def test_the_number_of_ranks_changes_no_byte(tmp_path: Path) -> None:
    folder: Path = WORLD.bcast(tmp_path)
    files = Experiment(small_study())
    shares: list[float] = []
    planned = simulate(Job(WORLD), files, folder / "together", shares.append)
    n_items = 2 * N_ITERATIONS
    assert len(shares) == len(range(WORLD.rank, n_items, WORLD.size))
    assert shares[-1] == 1
    if WORLD.rank:
        assert planned == []
        return
    alone = simulate(Alone(), files, folder / "alone")
    layers = [[each.layers for each in of] for of in (planned, alone)]
    assert layers[0] == layers[1]
    assert [each.records for each in planned] == [each.records for each in alone]
    for name in ("config.toml", "planned.jsonl"):
        together, by_one = ((folder / f / name).read_bytes() for f in ("together", "alone"))
        assert together == by_one


def most_calls(job: Job, ranks_per_host: int) -> dict[str, Counter[str]]:
    """The most calls of any rank in an iteration, by step and kind."""
    with counted_calls() as calls:
        counted = Job(MPI.Intracomm(job.comm))
        found = iterate(calls, counted, ranks_per_host, n_iterations=4)
    steps = {step: of_all(job.comm, parts) for step, parts in found.items()}
    return {
        step: +Counter({kind: int(costs[kind]) for kind in KINDS}) for step, costs in steps.items()
    }


@pytest.fixture
def pair() -> Job:
    """A job of two ranks, one of several at the same time."""
    return Job(WORLD).divide(RANK // 2)


@pytest.mark.skipif(N_RANKS < 4, reason="needs jobs of two sizes")
def test_ranks_call_mpi_as_often_in_a_larger_job(pair: Job) -> None:
    few, many = most_calls(pair, 1), most_calls(Job(WORLD), 1)
    assert few["agree"] == many["agree"] == Counter(collectives=3)  # hash, and report twice
    assert few["take"] == many["take"] == Counter()


@pytest.mark.skipif(N_RANKS < 4, reason="needs jobs of two sizes")
def test_a_planner_calls_mpi_as_often_as_there_are_other_hosts(pair: Job) -> None:
    two_hosts = most_calls(pair, 1)["plan"]
    assert two_hosts["one_sided"] > 0
    assert most_calls(Job(WORLD), N_RANKS // 2)["plan"] == two_hosts
    on_all = most_calls(Job(WORLD), 1)["plan"]
    assert on_all == Counter({kind: (N_RANKS - 1) * n for kind, n in two_hosts.items()})
    assert most_calls(Job(WORLD), N_RANKS)["plan"] == Counter()


LAST = RANK == N_RANKS - 1
OWN = IterationResult(
    iteration=3,
    loss=0.5 + RANK,
    gradient_norm=1.0,
    learning_rate=1e-3,
    n_samples=8,
    real_tokens=90,
    n_microbatches=2,
    padded_tokens=48 + RANK,
    predicted_ms=65.0,
    predicted_peak_bytes=10**12 + RANK,
    measured_peak_bytes=10**12 - RANK,
    waited_ms=0.25 * RANK,
    planning_ms=5.0,
    plans_ahead=7 - RANK,
    outlier_sample=-1,
    outlier_tokens=0,
    outlier_ms=0.0,
    passes_ms=20.0 + RANK,
    last_pass_ms=40.0 + RANK,
)


def test_the_numbers_of_all_ranks_are_known_to_all() -> None:
    planned: dict[str, Any] = {}
    if LAST:
        planned = {"outlier_sample": 0, "outlier_tokens": 1600, "outlier_ms": 180.5}
    planned["pass_times"] = (2.5, float(RANK))
    of_all = all_reduce_fields(replace(OWN, **planned), Job(WORLD))
    assert of_all == replace(
        OWN,
        loss=sum(0.5 + rank for rank in range(N_RANKS)),
        n_microbatches=2 * N_RANKS,
        padded_tokens=sum(48 + rank for rank in range(N_RANKS)),
        predicted_peak_bytes=10**12 + N_RANKS - 1,
        measured_peak_bytes=10**12,
        waited_ms=0.25 * (N_RANKS - 1),
        planning_ms=5.0 * N_RANKS,
        plans_ahead=8 - N_RANKS,
        outlier_sample=0,
        outlier_tokens=1600,
        outlier_ms=180.5,
        passes_ms=sum(20.0 + rank for rank in range(N_RANKS)),
        last_pass_ms=39.0 + N_RANKS,
        n_ranks=N_RANKS,
        pass_times=(2.5 * N_RANKS, sum(range(N_RANKS))),
    )
    mean_ms = 20 + (N_RANKS - 1) / 2
    assert of_all.bubble_share == pytest.approx(1 - mean_ms / (39 + N_RANKS))


def test_a_signal_to_one_rank_stops_all() -> None:
    own = replace(OWN, stop_signal=SIGTERM if LAST else 0)
    assert all_reduce_fields(own, Job(WORLD)).stop_signal == SIGTERM


def test_all_ranks_are_examined_and_the_first_speaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As if every half of them were on a host of its own."""
    folder, job = WORLD.bcast(tmp_path), Job(WORLD)
    n_hosts = min(2, N_RANKS)
    assert examine(Case(job, job.divide(RANK * n_hosts // N_RANKS), folder))
    said = capsys.readouterr().out
    if RANK > 0:
        assert said == ""
        return
    assert re.search(rf"  ranks +{N_RANKS} on ", said)
    assert re.search("  plan store +one-sided access", said)
    assert ("one host" in said) == (n_hosts == 1)
    assert said.count("  GPUs  ") <= 1
    assert str(folder) in said


def test_all_ranks_know_of_a_problem_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(__file__) / "run"
    assert not examine(Case.from_arguments(Job(WORLD), None, [], folder))
    said = capsys.readouterr().out
    assert ("lock  PROBLEM: " in said) == (RANK == 0)


def test_torch_that_one_rank_lacks_keeps_no_other_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if RANK == N_RANKS - 1:
        monkeypatch.setattr(
            "dynapipe_hpc.experiment.doctor.examine._fault_of_torch",
            lambda: "torch cannot be loaded here",
        )
    config = Path(__file__).parents[2] / "configs" / "tiny_cpu.toml"
    folder = WORLD.bcast(tmp_path) / "run"
    assert not examine(Case.from_arguments(Job(WORLD), config, [], folder))
    assert ("torch cannot be loaded here" in capsys.readouterr().out) == (RANK == 0)

"""The doctor: its findings about a machine, devices and a configuration."""

import errno
import os
import re
import threading
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from mpi4py import MPI
from tests.examples.tokenized import write_samples
from tests.jobs.asked_doctor import ALONE, ask
from tests.jobs.tiny_experiment import write_tiny_experiment

from dynapipe_hpc.experiment.doctor.examine import (
    Case,
    Finding,
    Level,
    check_devices,
    check_folder,
    examine,
    lines,
    merged,
)
from dynapipe_hpc.experiment.run_lock import RunLock
from dynapipe_hpc.job.job import Job

T = TypeVar("T")
Output = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_experiment(tmp_path)


def problems(said: Output) -> list[str]:
    """The lines of what was said that are problems, without blanks between columns."""
    out = said.readouterr().out
    return [" ".join(line.split()) for line in out.splitlines() if "PROBLEM" in line]


def test_a_machine_alone_is_looked_at_without_a_configuration(
    tmp_path: Path, capsys: Output
) -> None:
    assert examine(Case.from_arguments(ALONE, None, [], tmp_path))
    said = capsys.readouterr().out
    for heading in ("launch", "one-sided access", "devices", "hosts"):
        assert f"{heading}\n  " in said
    assert "configuration\n" not in said
    assert re.search("plan store +one-sided access", said)
    assert f"{tmp_path}: taken by renaming a folder" in said
    assert not list(tmp_path.iterdir())


def test_ranks_meet_once_though_the_folder_cannot_be_removed(tmp_path: Path) -> None:
    told: list[Any] = []
    before = threading.enumerate()  # one of another test may end meanwhile

    class Spoiling(Job):
        """A job in which somebody puts a link in the place of the folder."""

        def broadcast(self, value: T) -> T:
            told.append(value)
            return value

        def barrier(self) -> None:
            for each in tmp_path.glob(".dynapipe-hpc-*"):
                each.rename(tmp_path / "moved")
                each.symlink_to("moved")

    case = Case(Spoiling(MPI.COMM_WORLD), ALONE, tmp_path)
    levels = {each.subject: each.level for each in check_folder(case)}
    assert [path.parent for path in told] == [tmp_path]
    assert levels["lock"] is Level.FACT
    assert set(threading.enumerate()) <= set(before)


def test_a_lock_that_cannot_be_taken_is_the_only_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: RunLock) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(RunLock, "acquire", refuse)
    (finding,) = check_folder(Case(Job(MPI.COMM_WORLD), ALONE, tmp_path))
    assert finding.level is Level.PROBLEM
    assert "Operation not permitted; name another folder with -o" in finding.text
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_that_goes_with_all_has_no_problem(folder: Path, capsys: Output) -> None:
    assert ask(folder)
    said = capsys.readouterr().out
    assert re.search("tensors +added up over MPI\n", said)
    assert re.search("run +.*/config.toml: can be used\n", said)
    assert re.search(r"memory +with the longest sample, [\d.]+ MB on the fullest stage", said)


def test_the_longest_sample_is_as_long_as_rows_of_plans_are(folder: Path, capsys: Output) -> None:
    def needed(multiple: int) -> int:
        rule = f"planner.batch={{rule='dynamic', token_multiple={multiple}}}"
        assert not ask(folder, "cluster.device_memory_bytes=1000", rule)
        (problem,) = problems(capsys)
        found = re.search(r"the longest sample needs ([\d,]+)", problem)
        assert found
        return int(found[1].replace(",", ""))

    of_24, of_32, of_64 = map(needed, (8, 32, 64))  # its tokens: 20 and 1, and what goes with them
    assert of_24 < of_32 < of_64


def test_samples_that_cannot_be_evaluated_are_one_problem(folder: Path, capsys: Output) -> None:
    """It was a traceback."""
    other = write_samples(folder / "y.h5", [([1], [9], "a")] * 9, has_start=False)
    assert not ask(folder, f"evaluation.dataset={other}")
    [problem] = problems(capsys)
    assert problem.startswith(f"run PROBLEM: evaluation.dataset = '{other}': has start_id =")


def test_more_threads_than_cores_are_warned_of(folder: Path, capsys: Output) -> None:
    assert ask(folder, "training.threads=1000")
    said = " ".join(capsys.readouterr().out.split())
    assert "warning: " in said
    assert "for 1 x 1001 threads (ranks x training.threads and a planner)" in said


def test_names_in_findings_steer_no_terminal(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "\x1b[2J").mkdir()
    examine(Case.from_arguments(ALONE, None, [], tmp_path / "\x1b[2J"))
    said = capsys.readouterr().out
    assert r"\x1b[2J" in said
    assert "\x1b" not in said


def test_samples_that_are_too_long_are_a_problem_if_refused(folder: Path, capsys: Output) -> None:
    limit = ["data.max_tokens=16", "data.long_samples=drop"]
    assert not ask(folder, *limit)
    assert "run PROBLEM: data.max_tokens = 16: all 40 samples of" in problems(capsys)[0]
    assert ask(folder, "data.max_tokens=16")
    capsys.readouterr()
    assert not ask(folder, "data.max_tokens=16", "data.long_samples=refuse")
    assert "40 of 40 samples of" in problems(capsys)[0]


PROBLEMS = {
    "too few ranks": (["cluster.n_stages=2"], "ranks PROBLEM: the configuration needs 2 ranks"),
    "a sample that does not fit": (
        ["cluster.device_memory_bytes=1000"],
        "run PROBLEM: the longest sample needs .* cluster.device_memory_bytes is 1,000; ",
    ),
    "memory that the host lacks": (
        [f"cluster.device_memory_bytes={10**15}"],
        r".*use 1000000.0 GB each \(cluster.device_memory_bytes\): more than.*; lower it to ",
    ),
    "plans that shared memory does not hold": (
        ["store.look_ahead=4096", "store.plan_bytes=2000000000"],
        r".*make it larger \(containers: --shm-size\), lower store.plan_bytes",
    ),
    "no table": (
        ["planner.cost={kind='profiled',path='none.h5'}"],
        "run PROBLEM: none.h5: .*'dynapipe-hpc profile CONFIG -o TABLE.h5' makes one",
    ),
    "no dataset": (["data.dataset=none.h5"], "run PROBLEM: none.h5: "),
    "no dataset, and layers that are given": (
        ["data.dataset=none.h5", "model.layers_per_stage=[4]"],
        "run PROBLEM: none.h5: ",
    ),
    "tokens that the model does not know": (
        ["model.vocab_size=3"],
        r"run PROBLEM: \S+/x.h5: its tokenizer has 10 tokens.*model.vocab_size is 3; raise it",
    ),
    "no configuration": (["cluster.n_stage=2"], "run PROBLEM: .*did you mean 'n_stages'"),
    "no GPU": (
        ["training.device=cuda"],
        "GPUs PROBLEM: training.device is 'cuda', but rank 0 sees no GPU; .*cpu",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_a_run_would_refuse_is_one_problem(
    name: str, folder: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMPI_MCA_osc_sm_backing_directory", raising=False)
    torch = pytest.importorskip("torch")
    if name == "no GPU" and torch.cuda.is_available():
        pytest.skip("there are GPUs")
    overrides, told = PROBLEMS[name]
    assert not ask(folder, *overrides)
    (problem,) = problems(capsys)
    assert re.match(told, problem), problem


def test_a_run_folder_below_a_file_is_a_problem(folder: Path, capsys: Output) -> None:
    assert not ask(folder, output="x.h5/run")
    (problem,) = problems(capsys)
    assert re.match("lock PROBLEM: .*x.h5: Not a directory; name another folder", problem)


TOTAL_BYTES, FREE_BYTES = 42_400_000_000, 42_000_000_000


def test_only_the_gpu_of_the_rank_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    # Asking for another's would make a context there: it is not in the list.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: [(FREE_BYTES, TOTAL_BYTES)][i])
    found = list(check_devices(Case(ALONE, ALONE, Path("runs"))))
    assert found == [Finding("GPU 0", "A100, 42.4 GB, 42.0 GB free")]


def test_what_all_ranks_say_is_said_once() -> None:
    found = [[Finding("torch", "2.0"), Finding("GPUs", "none")]] * 4
    assert merged(found) == [Finding("torch", "2.0"), Finding("GPUs", "none")]


def test_ranks_that_differ_are_named() -> None:
    found = [[Finding("torch", "2.0"), Finding("GPUs", "none")]] * 2
    found.append([Finding("torch", "1.0", Level.PROBLEM), Finding("GPUs", "none")])
    assert merged(found) == [
        Finding("torch", "2.0 (ranks 0, 1)"),
        Finding("torch", "1.0 (rank 2)", Level.PROBLEM),
        Finding("GPUs", "none"),
    ]


def test_what_one_rank_says_of_its_host_stands_alone() -> None:
    found = [[Finding("memory of a", "1 GB")], [], [Finding("memory of b", "2 GB")], []]
    assert merged(found) == [Finding("memory of a", "1 GB"), Finding("memory of b", "2 GB")]


def test_a_section_has_its_subjects_in_a_column() -> None:
    findings = [Finding("ABI", "own"), Finding("threads", "single", Level.PROBLEM)]
    assert list(lines("MPI", findings)) == ["MPI", "  ABI      own", "  threads  PROBLEM: single"]

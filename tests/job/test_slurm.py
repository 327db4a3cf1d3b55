import os
from pathlib import Path

import pytest

from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.job.slurm import SlurmJob, read_slurm_job, requeue

JOB = SlurmJob(12, 0, "12")


def test_a_job_knows_its_number_and_its_restarts() -> None:
    assert read_slurm_job({"SLURM_JOB_ID": "12"}) == JOB
    assert read_slurm_job({"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "3"}) == SlurmJob(
        12, 3, "12"
    )


def test_empty_variables_count_as_absent() -> None:
    names = ("RESTART_COUNT", "ARRAY_JOB_ID", "ARRAY_TASK_ID")
    empty = {f"SLURM_{name}": "" for name in names}
    assert read_slurm_job({"SLURM_JOB_ID": ""}) is None
    assert read_slurm_job({"SLURM_JOB_ID": "12", **empty}) == JOB
    assert read_slurm_job({"SLURM_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "2"}) == JOB


def test_a_task_of_an_array_is_named_by_both_numbers() -> None:
    task = {"SLURM_JOB_ID": "14", "SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "2"}
    assert read_slurm_job(task) == SlurmJob(14, 0, "12_2")


def test_what_slurm_answers_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho slurm_requeue: $* is not permitted >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(RunError, match="job 12: slurm_requeue: requeue 12 is not permitted; "):
        requeue(JOB)

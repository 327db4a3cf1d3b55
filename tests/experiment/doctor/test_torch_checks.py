"""Findings of the doctor about GPUs, on a machine that pretends to have one."""

from pathlib import Path

import pytest
import torch
from mpi4py import MPI
from tests.jobs.tiny_experiment import tiny_t5_experiment

from dynapipe_hpc.executor.transport.torch_distributed import communicator_bytes
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.doctor import torch_checks
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.experiment.doctor.torch_checks import check_devices
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.host_device import HostDevice
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Cluster

TOTAL_BYTES, FREE_BYTES = 42_400_000_000, 42_000_000_000


def memory_of(monkeypatch: pytest.MonkeyPatch, limit: str, **cluster: int) -> Finding:
    """Finding about the memory of a GPU of 40 GiB."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    # Asking for another's would make a context there: it is not in the list.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: [(FREE_BYTES, TOTAL_BYTES)][i])
    host = HostDevice("A100")
    monkeypatch.setattr(torch_checks, "find_host_device", lambda _: host)
    tables = tiny_t5_experiment().model_dump()
    tables["cluster"] |= {"device_memory_bytes": limit, **cluster}
    tables["training"] |= {"device": "cuda"}
    files = Experiment(ExperimentConfig.model_validate(tables))
    job = Job(MPI.COMM_SELF)
    findings = check_devices(Case(job, job, Path("runs"), files=files))
    (found,) = [each for each in findings if each.subject == "GPU memory"]
    return found


def test_plans_that_fill_nine_tenths_of_a_gpu_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    found = memory_of(monkeypatch, "38GB", n_stages=1, n_replicas=1, n_shards=1)
    assert found.level is Level.FACT
    assert (
        "is 38.0 GB, so a run needs 41.1 GB: 40.9 GB that it reserves, about 0.0 GB" in found.text
    )


def test_more_than_that_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    found = memory_of(monkeypatch, "38.5GB", n_stages=1, n_replicas=1, n_shards=1)
    assert found.level is Level.WARNING
    assert "lower it to 38.2 GB, 90% of a GPU" in found.text


def test_room_for_connections_is_needed_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"n_stages": 4, "n_replicas": 2, "n_shards": 2}
    found = memory_of(monkeypatch, "38GB", **sizes)
    assert found.level is Level.PROBLEM
    cluster = Cluster(device_memory_bytes=1, **sizes)
    connected = communicator_bytes(cluster, [(0, 2, 3)])  # embedding, first decoder layer, head
    advised = 0.93 * (FREE_BYTES - connected - (256 << 20))
    assert advised < 38e9
    assert f"but a GPU has 42.0 GB free; lower it to {advised / 1e9:.1f} GB" in found.text
    fits = memory_of(monkeypatch, f"{int(advised) - 1}B", **sizes)
    assert fits.level is Level.FACT

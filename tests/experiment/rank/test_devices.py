"""Devices of ranks, their kernels, and the channels between them."""

from collections.abc import Callable

import pytest
import torch
from mpi4py import MPI
from tests.examples.kept_communicators import KINDS, check_nothing_is_kept
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.channels import open_torch_channels
from dynapipe_hpc.experiment.rank.devices import CPU, RankDevice, find_device, reserve_memory
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Cluster

ALONE = Job(MPI.COMM_SELF)
ONE = Cluster(device_memory_bytes=1)
without_gpus = pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs")


def on(device: str) -> ExperimentConfig:
    config = tiny_experiment()
    training = config.training.model_copy(update={"device": device})
    return config.model_copy(update={"training": training})


@pytest.mark.parametrize("device", ["cpu", pytest.param("auto", marks=without_gpus)])
def test_ranks_compute_on_processors_where_they_should_or_must(device: str) -> None:
    config = on(device)
    place = find_device(ALONE, config)
    assert place == RankDevice(CPU, is_shared=False)
    reserve_memory(place, config)  # nothing to do


@without_gpus
def test_gpus_that_are_not_there_are_an_error_with_a_way_out() -> None:
    with pytest.raises(
        InputError, match=r"training.device is 'cuda', but rank 0 sees no GPU; .*cpu"
    ):
        find_device(ALONE, on("cuda"))


@without_gpus
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_intel_gpus_are_refused_by_name(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    with pytest.raises(InputError, match=r"sees Intel GPUs, which are not supported; .*'cpu'"):
        find_device(ALONE, on(device))
    assert find_device(ALONE, on("cpu")) == RankDevice(CPU, is_shared=False)


def test_ranks_meet_without_a_file(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("job")
    monkeypatch.chdir(folder)
    channels = open_torch_channels(
        "gloo", ALONE, ONE, CPU, dtype=torch.float32, holders=(), timeout_s=60
    )
    assert list(folder.iterdir()) == []
    number = torch.tensor([2.0])
    channels.collectives.sum_within_replica(number)
    assert number.item() == 2
    channels.close()


@pytest.mark.parametrize("use", KINDS)
def test_what_is_closed_keeps_no_communicators(use: Callable[[], None]) -> None:
    check_nothing_is_kept(use)

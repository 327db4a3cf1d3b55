"""Devices of ranks, their kernels, and the channels between them."""

from collections.abc import Callable

import pytest
import torch
from mpi4py import MPI
from tests.examples.kept_communicators import KINDS, check_nothing_is_kept
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment, with_keys

import dynapipe_hpc.experiment.rank.devices as host_device
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.devices import (
    CPU,
    HostDevice,
    RankDevice,
    device_warnings,
    find_device,
    find_host_device,
    reserve_memory,
    slices_obstacle,
)
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.plan.cluster import Cluster

ALONE = Job(MPI.COMM_SELF)
ONE = Cluster(device_memory_bytes=1)
without_gpus = pytest.mark.skipif(torch.cuda.is_available(), reason="there are GPUs")


def on(device: str) -> ExperimentConfig:
    return with_keys(tiny_experiment(), training={"device": device})


@pytest.mark.parametrize("device", ["cpu", pytest.param("auto", marks=without_gpus)])
def test_ranks_compute_on_processors_where_they_should_or_must(device: str) -> None:
    config = on(device)
    place = find_device(ALONE, config)
    assert place == RankDevice(CPU, is_shared=False)
    reserve_memory(place, config)  # nothing to do


@without_gpus
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_intel_gpus_are_refused_by_name(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    with pytest.raises(InputError, match=r"sees Intel GPUs, which are not supported; .*'cpu'"):
        find_device(ALONE, on(device))
    assert find_device(ALONE, on("cpu")) == RankDevice(CPU, is_shared=False)


@without_gpus
def test_what_hides_gpus_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "3")
    hidden = r"sees no GPU \(CUDA_VISIBLE_DEVICES='', ROCR_VISIBLE_DEVICES='3'\); start the job"
    with pytest.raises(InputError, match=hidden):
        find_device(ALONE, on("cuda"))


@pytest.mark.parametrize("use", KINDS)
def test_what_is_closed_keeps_no_communicators(use: Callable[[], None]) -> None:
    check_nothing_is_kept(use)


NO_GPU = HostDevice()


@pytest.fixture
def old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that cannot run flash attention."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    monkeypatch.setattr(host_device, "kernels_of", lambda *_: "math")


def packed(config: ExperimentConfig, dtype: str) -> ExperimentConfig:
    tables = config.model_dump()
    tables["planner"]["batch"] = {"rule": "packed_balanced"}
    tables["training"] |= {"dtype": dtype, "device": "auto"}
    return ExperimentConfig.model_validate(tables)


def warning_of(config: ExperimentConfig) -> str:
    return "\n".join(device_warnings(config, find_host_device(config)))


@pytest.mark.usefixtures("old_gpu")
def test_packed_rows_without_a_kernel_are_a_warning_where_there_are_gpus() -> None:
    config = packed(tiny_experiment(), "bfloat16")
    assert not list(device_warnings(config, NO_GPU))
    assert warning_of(config) == (
        "flash attention for packed rows cannot run: it needs compute capability 8.0, but the GPU "
        "has 7.5; until then documents of similar length are padded to equal rows, and long "
        "samples run whole"
    )
    assert "set training.dtype to bfloat16" in warning_of(packed(config, "float32"))


@pytest.mark.usefixtures("old_gpu")
def test_rows_that_are_not_packed_need_no_kernel() -> None:
    assert "packed" not in warning_of(tiny_experiment())
    assert warning_of(packed(tiny_t5_experiment(), "bfloat16")) == ""


@pytest.mark.usefixtures("old_gpu")
def test_slices_need_a_kernel_on_gpus() -> None:
    tables = tiny_experiment().model_dump()
    tables["planner"]["batch"] = {"rule": "dynamic", "layouts": ["packed"], "slices": "auto"}
    config = ExperimentConfig.model_validate(tables)
    host = find_host_device(config)
    assert slices_obstacle(config, NO_GPU) == ""
    assert slices_obstacle(config, host).startswith("it needs 16-bit activations")
    tables["planner"]["batch"]["slices"] = 512
    with pytest.raises(InputError, match="slices is 512, but slices need flash attention on a GPU"):
        slices_obstacle(ExperimentConfig.model_validate(tables), host)
    assert slices_obstacle(tiny_experiment(), host) == ""

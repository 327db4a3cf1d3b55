"""The kind of device of a host, on a machine that pretends to have a GPU."""

import pytest
import torch
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment

import dynapipe_hpc.experiment.rank.devices as host_device
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.devices import (
    HostDevice,
    device_warnings,
    find_host_device,
    slices_obstacle,
)

CPU = HostDevice()


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
    assert not list(device_warnings(config, CPU))
    assert warning_of(config) == (
        "flash attention for packed rows cannot run: it needs compute capability 8.0, and the GPU "
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
    assert slices_obstacle(config, CPU) == ""
    assert slices_obstacle(config, host).startswith("it needs 16-bit activations")
    tables["planner"]["batch"]["slices"] = 512
    with pytest.raises(InputError, match="slices is 512, but slices need flash attention on a GPU"):
        slices_obstacle(ExperimentConfig.model_validate(tables), host)
    assert slices_obstacle(tiny_experiment(), host) == ""

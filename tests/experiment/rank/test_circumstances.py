"""Circumstances of layers on a machine that pretends to have a GPU."""

import pytest
import torch
from tests.jobs.tiny_experiment import tiny_experiment, tiny_t5_experiment

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.circumstances import slices_obstacle, slow_packed_rows


def packed(config: ExperimentConfig, dtype: str) -> ExperimentConfig:
    tables = config.model_dump()
    tables["planner"]["batch"] = {"rule": "packed_balanced"}
    tables["training"] |= {"dtype": dtype, "device": "auto"}
    return ExperimentConfig.model_validate(tables)


def test_packed_rows_without_a_kernel_are_a_warning_where_there_are_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = packed(tiny_experiment(), "bfloat16")
    assert slow_packed_rows(config) == ""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert slow_packed_rows(config) == (
        "flash attention for packed rows cannot run: it needs compute capability 8.0, and the GPU "
        "has 7.5; until then documents of like length are padded to rows of one length, and long "
        "samples run whole"
    )
    assert "set training.dtype to bfloat16" in slow_packed_rows(packed(config, "float32"))


def test_rows_that_are_not_packed_need_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    assert slow_packed_rows(tiny_experiment()) == ""
    assert slow_packed_rows(packed(tiny_t5_experiment(), "bfloat16")) == ""


def test_slices_need_a_kernel_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = tiny_experiment().model_dump()
    tables["planner"]["batch"] = {"rule": "dynamic", "layouts": ["packed"], "slices": "auto"}
    config = ExperimentConfig.model_validate(tables)
    assert slices_obstacle(config) == ""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    assert slices_obstacle(config).startswith("it needs 16-bit activations")
    tables["planner"]["batch"]["slices"] = 512
    with pytest.raises(InputError, match="slices is 512, but slices need flash attention on a GPU"):
        slices_obstacle(ExperimentConfig.model_validate(tables))
    assert slices_obstacle(tiny_experiment()) == ""

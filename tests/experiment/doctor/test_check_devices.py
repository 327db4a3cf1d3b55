"""Findings of the doctor about GPUs, on a machine that pretends to have some."""

from pathlib import Path

import pytest
import torch
from tests.jobs.asked_doctor import ALONE

from dynapipe_hpc.experiment.doctor.examine import check_devices
from dynapipe_hpc.experiment.doctor.finding import Case, Finding

TOTAL_BYTES, FREE_BYTES = 42_400_000_000, 42_000_000_000


def test_only_the_gpu_of_the_rank_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A100")
    # Asking for another's would make a context there: it is not in the list.
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda i: [(FREE_BYTES, TOTAL_BYTES)][i])
    found = list(check_devices(Case(ALONE, ALONE, Path("runs"))))
    assert found == [Finding("GPU 0", "A100, 42.4 GB, 42.0 GB free")]

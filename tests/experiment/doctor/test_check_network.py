"""Findings of the doctor about the fabric, on a machine that pretends to have one."""

import socket
from pathlib import Path

import pytest
from tests.jobs.asked_doctor import ALONE

from dynapipe_hpc.experiment.doctor.examine import check_network
from dynapipe_hpc.experiment.doctor.finding import Case, Level

CASE = Case(ALONE, ALONE, Path("runs"))


@pytest.fixture
def slingshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A host on Slingshot; a folder in which libraries are found."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo"), (2, "hsn0"), (3, "hsn1")])
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path / 'none'}:{tmp_path}")
    monkeypatch.delenv("NCCL_NET_PLUGIN", raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def plain_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPICH_GPU_SUPPORT_ENABLED", raising=False)


def test_a_host_on_slingshot_without_a_plugin_is_warned_of_tcp(slingshot: Path) -> None:
    (plugin,) = check_network(CASE)
    assert plugin.level is Level.WARNING
    assert "would use TCP" in plugin.text
    assert slingshot.is_dir()


@pytest.mark.parametrize("name", ["libnccl-net.so", "libnccl-net-ofi.so", "librccl-net.so.0"])
def test_a_plugin_in_the_path_of_libraries_is_named(slingshot: Path, name: str) -> None:
    (slingshot / name).touch()
    (plugin,) = check_network(CASE)
    assert plugin.level is Level.FACT
    assert plugin.text == str(slingshot / name)


@pytest.mark.parametrize(("value", "is_warned_of"), [("1", True), ("0", False), ("", False)])
def test_mpi_that_handles_memory_of_gpus_is_a_warning(
    value: str, is_warned_of: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "lo")])
    monkeypatch.setenv("MPICH_GPU_SUPPORT_ENABLED", value)
    findings = list(check_network(CASE))
    assert [finding.level for finding in findings] == [Level.WARNING] * is_warned_of
    assert all("can deadlock with NCCL; set it to 0" in each.text for each in findings)

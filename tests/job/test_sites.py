"""Environments of sites, and the script for PBS, without a site."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.job.test_slurm_scripts import PRINTS, program, run

SLURM = Path(__file__).parents[2] / "slurm"
SITES = sorted((SLURM / "sites").glob("*.sh"))
each_site = pytest.mark.parametrize("path", SITES, ids=lambda path: path.stem)


def environment_of(path: Path) -> dict[str, str]:
    """Variables that a file adds to an empty environment."""
    done = subprocess.run(
        ["bash", "-euc", f". {path}; env -0"], env={}, capture_output=True, text=True, check=True
    )
    added = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    return {name: value for name, value in added.items() if name not in ("PWD", "SHLVL", "_")}


@each_site
def test_a_site_is_a_list_of_variables_with_their_source(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert any(line.startswith("# Source: https://") for line in lines)
    settings = [line for line in lines if not line.startswith("#")]
    assert all(re.match(r"export [A-Z][A-Z0-9_]*=", line) for line in settings)
    assert len(environment_of(path)) == len(settings)


@each_site
def test_a_site_turns_gpu_aware_mpi_off_and_names_the_fast_network(path: Path) -> None:
    environment = environment_of(path)
    assert environment["MPICH_GPU_SUPPORT_ENABLED"] == "0"
    assert re.match(r"(hsn|ib)\d*", environment["NCCL_SOCKET_IFNAME"])


@each_site
def test_libfabric_cannot_deadlock_with_its_cache_of_registered_memory(path: Path) -> None:
    environment = environment_of(path)
    if environment["NCCL_SOCKET_IFNAME"].startswith("hsn"):
        assert environment["FI_MR_CACHE_MONITOR"] in ("userfaultfd", "kdreg2")
        assert int(environment["FI_CXI_DEFAULT_CQ_SIZE"]) >= 131072


def test_lumi_does_not_use_the_level_that_hangs_there() -> None:
    assert "NCCL_NET_GDR_LEVEL" not in environment_of(SLURM / "sites" / "lumi.sh")


@pytest.mark.parametrize("site", ["lumi", "frontier"])
def test_every_die_of_a_node_has_seven_cores_of_its_own(site: str) -> None:
    launcher = environment_of(SLURM / "sites" / f"{site}.sh")["LAUNCHER"]
    masks = [int(mask, 16) for mask in launcher.partition("mask_cpu:")[2].split(",")]
    assert [mask.bit_count() for mask in masks] == [7] * 8
    assert sum(mask.bit_count() for mask in masks) == sum(masks).bit_count()


def test_the_readme_has_a_line_for_each_file_and_the_files_that_it_names() -> None:
    named = set(re.findall(r"`(\w+\.sh)`", (SLURM / "README.md").read_text()))
    assert {path.name for path in SITES} == named - {"chain.sh", "staged.sh"}


def pbs(folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    program(folder / "mpiexec", PRINTS)
    (folder / "nodes").write_text("b\nb\na\na\n")
    known = {"PBS_O_WORKDIR": str(folder), "PBS_NODEFILE": str(folder / "nodes")}
    return run(folder, SLURM / "run.pbs", **known, **variables)


def test_a_pbs_job_starts_a_rank_per_gpu_of_all_nodes(tmp_path: Path) -> None:
    done = pbs(tmp_path, RANKS_PER_NODE="4", RUN="c.toml -o runs/x")
    started = "32 WARN: -n 8 --ppn 4 dynapipe-hpc run c.toml -o runs/x\n"
    assert done.stdout == started, done.stderr


def test_a_pbs_job_takes_another_launcher(tmp_path: Path) -> None:
    done = pbs(tmp_path, RANKS_PER_NODE="4", RUN="c.toml", LAUNCHER="mpiexec --hosts a")
    assert done.stdout == "32 WARN: --hosts a dynapipe-hpc run c.toml\n", done.stderr


@pytest.mark.parametrize("missing", ["RANKS_PER_NODE", "RUN"])
def test_a_pbs_job_names_the_variable_that_is_missing(tmp_path: Path, missing: str) -> None:
    variables = {"RANKS_PER_NODE": "4", "RUN": "c.toml"}
    del variables[missing]
    done = pbs(tmp_path, **variables)
    assert done.returncode != 0
    assert f"{missing}: name" in done.stderr

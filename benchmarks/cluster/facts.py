"""Facts about the allocation: launcher, MPI library, network cards. No names of hosts or users."""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.job.world import MPI, STARTED

_SETTINGS = ("OMPI_MCA_", "UCX_", "HCOLL_", "UCC_", "MPIR_CVAR_", "FI_", "NCCL_", "PMIX_MCA_")
_LIBRARIES = re.compile(
    r"/lib(pmix|pmi2?|ucp|uct|hcoll|ucc|fabric|psm2|mpi|mpi_cray|mlx5)[-.\w]*\.so"
)
_CARDS = Path("/sys/class/infiniband")
_STARTED, _CLOCK_TICKS = 19, os.sysconf("SC_CLK_TCK")


def age_s() -> float:
    """Seconds since this process was started, by the clock of the system."""
    started = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_STARTED]
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(started) / _CLOCK_TICKS


def facts(job: Job) -> Mapping[str, object]:
    """Facts of all ranks; those that differ between ranks are listed with their numbers."""
    ready_s = age_s()
    on_host = job.on_this_host()
    n_hosts = sum(job.all_gather_int(int(on_host.is_first)))
    machine = {k: v for k, v in machine_facts(job.size).items() if k not in ("host", "slurm_job")}
    oldest_s, youngest_s = job.all_reduce_max([ready_s, -ready_s])
    return {
        **machine,
        "hosts": n_hosts,
        "ranks_per_host": int(job.all_reduce_max([on_host.size])[0]),
        "interface": STARTED.interface or "none",
        "library": MPI.Get_library_version().splitlines()[0].strip("\0"),
        "standard": ".".join(map(str, MPI.Get_version())),
        "loaded": alike(job, libraries()),
        "cards": alike(job, cards()),
        "settings": alike(job, settings()),
        "start_to_mpi_s": {"first": -youngest_s, "last": oldest_s},
    }


def alike(job: Job, text: str) -> Mapping[str, int]:
    """Number of ranks per text; on the first rank only."""
    texts = job.gather(text)
    return {each: texts.count(each) for each in sorted(set(texts))}


def libraries() -> str:
    """Communication libraries that this process has loaded, by file name."""
    paths = set(re.findall(r"/\S+", Path("/proc/self/maps").read_text()))
    return " ".join(sorted({Path(path).name for path in paths if _LIBRARIES.search(path)}))


def cards() -> str:
    """Network cards of this host: kind, firmware, state and rate."""
    if not _CARDS.is_dir():
        return "none"
    return "; ".join(_card(card) for card in sorted(_CARDS.iterdir())) or "none"


def _card(card: Path) -> str:
    names = ("hca_type", "fw_ver", "ports/1/link_layer", "ports/1/state", "ports/1/rate")
    values = [(card / name).read_text().strip() for name in names if (card / name).exists()]
    return " ".join([card.name, *values])


def settings() -> str:
    """Settings of communication libraries in the environment, without folders."""
    names = sorted(name for name in os.environ if name.startswith(_SETTINGS))
    return " ".join(
        f"{name}={value}"
        for name in names
        if "/" not in (value := os.environ[name]) and name != "OMPI_MCA_PREFIXES"
    )

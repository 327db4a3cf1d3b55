"""Circumstances in which layers are measured or run, for the provenance of a cost table."""

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.devices import gpu_name
from dynapipe_hpc.job.machine import machine_facts


def circumstances(config: ExperimentConfig, n_ranks: int) -> dict[str, str]:
    """Facts about a job that runs a configuration on this machine, for a table's provenance."""
    facts = {name: str(value) for name, value in machine_facts(n_ranks).items()}
    gpu = gpu_name(config)
    return facts | {
        "device": "cuda" if gpu else "cpu",
        "processor": gpu or facts["processor"],
        "threads": str(config.training.threads),
        "dtype": config.training.dtype,
        "zero_stage": str(config.cluster.zero_stage),
    }

"""The check that costs suit an experiment and the machine it runs on."""

from collections.abc import Mapping

from dynapipe_hpc.data.errors import InputError, printable
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.cost.config import AnalyticTable
from dynapipe_hpc.planner.cost.from_config import CostSource, MeasuredCosts

# If these differ, costs are wrong, not only inexact.
_MUST_AGREE = {
    "dtype": "training.dtype",
    "device": "training.device",
    "optimizer": "training.optimizer",
    "sequence_parallel": "cluster.sequence_parallel",
}
_SHOULD_AGREE = (
    *("processor", "ranks", "threads", "zero_stage", "shard_sums"),
    *("attention", "torch", "dynapipe-hpc"),
)
_AGAIN = "measure again with 'dynapipe-hpc profile CONFIG -o TABLE.h5'"


def check_costs(costs: CostSource, here: Mapping[str, str]) -> str:
    """Compares the circumstances in which a cost table was measured with those of its use.

    Args:
        costs: The cost table, or estimates, which are valid everywhere.
        here: Circumstances of use as far as they are known, at least `configured`. Circumstances
            that the table lacks, for example an imported one, are not compared.

    Returns:
        A warning that names the differences; empty if there are none.

    Raises:
        InputError: The costs were measured with another dtype or optimizer, or on another kind of
            device, so they are wrong.
    """
    if not isinstance(costs, MeasuredCosts):
        return ""
    path, measured = costs.config.path, costs.table.provenance
    for name, key in _MUST_AGREE.items():
        if name in here and measured.get(name, here[name]) != here[name]:
            raise InputError(
                f"{path}: was measured with {name} {measured[name]}, but {key} is "
                f"{here[name]}; change it, or {_AGAIN}"
            )
    differing = [
        f"{name} {printable(str(measured[name]))} (here {here[name]})"
        for name in _SHOULD_AGREE
        if name in here and name in measured and measured[name] != here[name]
    ]
    if not differing:
        return ""
    return (
        f"{path}: was measured with {', '.join(differing)}; predictions may be off, and plans "
        f"worse than possible: {_AGAIN}, started in the same way as the run"
    )


def missing_rate(config: ExperimentConfig) -> str:
    """A warning of GPUs whose sums over ranks are estimated at a processor's rate, or empty."""
    cluster, cost = config.cluster, config.planner.cost
    if not isinstance(cost, AnalyticTable) or "reduction_bytes_per_ms" in cost.model_fields_set:
        return ""
    if config.training.device != "cuda" or cluster.n_replicas * cluster.n_shards == 1:
        return ""
    return (
        "planner.cost.reduction_bytes_per_ms is not set: sums over replicas and shards are "
        f"estimated at {cost.reduction_bytes_per_ms / 1e6:g} GB/s, the rate of processors; extend "
        "a file of configs/clusters with as many nodes, or measure with 'dynapipe-hpc profile'"
    )


def configured(config: ExperimentConfig) -> dict[str, str]:
    """Circumstances that the configuration decides, wherever it runs."""
    device = config.training.device
    return {
        "ranks": str(config.cluster.n_ranks),
        "threads": str(config.training.threads),
        "dtype": config.training.dtype,
        "optimizer": config.training.optimizer,
        "zero_stage": str(config.cluster.zero_stage),
        "sequence_parallel": str(config.cluster.sequence_parallel),
        "shard_sums": config.cluster.shard_sums,
        **({} if device == "auto" else {"device": device}),
    }

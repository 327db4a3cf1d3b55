"""Checks at the start of a run, for the run itself and for the doctor.

All but `check_torch` need neither torch nor MPI, which take seconds to load.
"""

import gc
import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from dynapipe_hpc.data.errors import InputError, printable
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import lacking_origin_error
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import AnalyticTable
from dynapipe_hpc.planner.cost.from_config import CostSource, MeasuredCosts
from dynapipe_hpc.planner.cost.stage_parts import STAGE
from dynapipe_hpc.planner.schedule.rules import may_split, schedule_rules

# If these differ, costs are wrong, not only inexact.
_MUST_AGREE = {
    "dtype": "training.dtype",
    "device": "training.device",
    "sequence_parallel": "cluster.sequence_parallel",
}
_SHOULD_AGREE = (
    *("processor", "ranks", "threads", "zero_stage", "shard_sums"),
    *("attention", "torch", "dynapipe-hpc"),
)
_AGAIN = "measure again with 'dynapipe-hpc profile CONFIG -o TABLE.h5'"


def check_costs(costs: CostSource, here: Mapping[str, str]) -> str:
    """Compares the circumstances in which a cost table was measured with those of its use.

    `here`: Circumstances of use as far as they are known, at least `configured`. Circumstances that
    the table lacks, as an imported table may, are not compared. Returns a warning that names the
    differences; empty if there are none.
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
    """A warning if sums over ranks of GPUs are estimated at a processor's rate; else empty."""
    cluster, cost = config.cluster, config.planner.cost
    if not isinstance(cost, AnalyticTable) or "reduction_bytes_per_ms" in cost.model_fields_set:
        return ""
    if config.training.device != "cuda" or cluster.n_replicas * cluster.n_shards == 1:
        return ""
    return (
        "planner.cost.reduction_bytes_per_ms is not set: sums over replicas and shards are "
        f"estimated at {cost.reduction_bytes_per_ms / 1e6:g} GB/s, the rate of processors; extend "
        "a file of configs/clusters for these nodes, or measure with 'dynapipe-hpc profile'"
    )


def cost_warnings(files: Experiment, here: Mapping[str, str] | None = None) -> list[str]:
    """Warnings of `check_costs` and `missing_rate`; `here` defaults to `configured`."""
    config = files.config
    warnings = check_costs(files.costs, here or configured(config)), missing_rate(config)
    return [warning for warning in warnings if warning]


def configured(config: ExperimentConfig) -> dict[str, str]:
    """Circumstances that the configuration decides, wherever it runs."""
    device = config.training.device
    return {
        "ranks": str(config.cluster.n_ranks),
        "threads": str(config.training.threads),
        "dtype": config.training.dtype,
        "zero_stage": str(config.cluster.zero_stage),
        "sequence_parallel": str(config.cluster.sequence_parallel),
        "shard_sums": config.cluster.shard_sums,
        **({} if device == "auto" else {"device": device}),
    }


def check_size(n_ranks: int, cluster: Cluster) -> None:
    """Compares the number of ranks with the configuration."""
    if n_ranks != cluster.n_ranks:
        raise InputError(
            f"the configuration needs {cluster.n_ranks} ranks (cluster.n_replicas = "
            f"{cluster.n_replicas} x cluster.n_stages = {cluster.n_stages} x cluster.n_shards = "
            f"{cluster.n_shards}), but this job has {n_ranks}; start it with mpiexec -n "
            f"{cluster.n_ranks} (or srun -n {cluster.n_ranks}), or change [cluster]"
        )


def check_run(files: Experiment) -> None:
    """Refuses what no number of ranks could train, before torch and MPI are needed."""
    check_batches(files)
    _ = files.evaluation
    config = files.config
    check_costs(files.costs, configured(config))
    check_weights(files)
    check_trackers(config)


def check_batches(files: Experiment) -> None:
    """Refuses a run in which some iteration has fewer samples than there are replicas."""
    _ = files.dataset  # first: lengths may be drawn instead
    config, sampler, n_iterations = files.config, files.sampler, files.training.n_iterations
    if files.mixture and files.mixture.is_limited:
        sampler.iteration(n_iterations - 1)
    n_replicas = config.cluster.n_replicas
    k = sampler.first_below(n_replicas, n_iterations)
    if k is not None:
        enough = n_replicas * config.data.max_tokens
        raise InputError(
            f"data.tokens_per_batch = {config.data.tokens_per_batch:,}: iteration {k} has "
            f"{len(sampler.iteration(k))} samples for cluster.n_replicas = {n_replicas}, each of "
            f"which needs one; raise it (to {enough:,} if there are enough samples), or lower "
            "cluster.n_replicas"
        )


def check_weights(files: Experiment) -> None:
    config, origin = files.config, files.origin
    if origin is None:
        if config.training.preference_loss is not None:
            raise lacking_origin_error(config.training.objective)
        if not config.model.has_own_layers:
            raise InputError(
                f"model.family is {config.model.family!r}, whose weights are not drawn at random; "
                "name the folder of the model in model.init_from"
            )
        return
    if not config.model.has_own_layers and find_spec(config.model.family) is None:
        raise InputError(
            f"model.family is {config.model.family!r}, a package that is not installed: "
            "pip install 'dynapipe-hpc[train]'"
        )
    if origin.description is None:
        if config.training.init_optimizer:
            raise InputError(
                f"model.init_from = '{config.model.init_from}' is a Hugging Face model, which has "
                "no optimizer state; leave training.init_optimizer out"
            )
        # Loads neither numbers nor torch.
        from dynapipe_hpc.training.huggingface.tensors import open_tensors

        open_tensors(origin.folder, origin.mapping, config.model)


def check_trackers(config: ExperimentConfig) -> None:
    for name in ("wandb", "mlflow"):
        if getattr(config.report, name) and find_spec(name) is None:
            raise InputError(
                f"report.{name} needs the package {name}, which is not installed; pip install "
                f"'dynapipe-hpc[{name}]', or leave report.{name} out"
            )


def check_profile(files: Experiment, n_ranks: int) -> None:
    """Refuses a profile that no run could use; the dataset need not exist yet."""
    cluster = files.config.cluster
    if n_ranks != cluster.n_shards:
        check_size(n_ranks, cluster)
    paths = files.config.data.paths
    if paths and all(Path(path).exists() for path in paths):
        files.dataset.close()


def check_torch() -> None:
    # Modules are no garbage: a search through them takes a tenth of this import and of every
    # iteration's collection, and a third of a short run's CPU time at its exit.
    gc.disable()
    try:
        with optional_packages():
            importlib.import_module("torch")
    except InputError:
        raise
    except Exception as error:  # a broken library may raise anything
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"torch cannot be loaded ({type(error).__name__}: {reason}); reinstall it, for "
            "example with pip install --force-reinstall torch"
        ) from error
    finally:
        gc.freeze()
        gc.enable()


def kinds_with_halves(config: ExperimentConfig, recompute: Recompute) -> frozenset[str]:
    """Kinds of parts whose split backward passes are measured in a mode of recomputation.

    These are the layers that defer gradients of weights in that mode, and the fixed cost of a
    stage; empty if no layer defers any, or if plans never split. The other parts take as long as in
    a pass that is not split.
    """
    if not may_split(schedule_rules(config.planner.schedule)):
        return frozenset()
    deferring = config.model.deferring_kinds(recompute)
    return frozenset({*deferring, STAGE} if deferring else ())

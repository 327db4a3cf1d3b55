"""Whether a cost table goes with an experiment, and with where it is used."""

from collections.abc import Mapping

from dynapipe_hpc.data.errors import InputError, printable
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.cost.from_config import CostSource, MeasuredCosts

# Costs of others are wrong, not only inexact.
_MUST_AGREE = {"dtype": "training.dtype", "device": "training.device"}
_SHOULD_AGREE = ("processor", "ranks", "threads", "zero_stage", "torch", "dynapipe-hpc")
_AGAIN = "measure again with 'dynapipe-hpc profile CONFIG -o TABLE.h5'"


def check_costs(costs: CostSource, here: Mapping[str, str]) -> str:
    """Compares the circumstances in which a cost table was measured with those of its use.

    Args:
        costs: The table, or estimates, which hold everywhere.
        here: Circumstances of its use, as far as they are known; `configured` at least. What a
            table does not say, as imported ones, is not compared.

    Returns:
        A warning: what was different; empty if nothing was.

    Raises:
        InputError: The costs cannot be right: they were measured with numbers of another type, or
            on another kind of device.
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
        f"worse than they could be: {_AGAIN}, started as the run"
    )


def configured(config: ExperimentConfig) -> dict[str, str]:
    """The circumstances that a configuration decides, wherever it runs."""
    device = config.training.device
    return {
        "ranks": str(config.cluster.n_ranks),
        "threads": str(config.training.threads),
        "dtype": config.training.dtype,
        "zero_stage": str(config.cluster.zero_stage),
        **({} if device == "auto" else {"device": device}),
    }

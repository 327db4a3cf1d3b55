"""Whether a cost table goes with an experiment."""

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.load_table import load_table


def check_costs(config: ExperimentConfig) -> None:
    """Refuses a cost table that was measured with numbers of another type.

    Raises:
        InputError: It was, or it cannot be read.
    """
    cost = config.planner.cost
    if not isinstance(cost, ProfiledConfig):
        return
    used = config.training.dtype
    table = load_table(cost.path, config.model)
    measured = table.provenance.get("dtype", used)  # imported ones do not know
    if measured != used:
        raise InputError(
            f"{cost.path}: was measured with dtype {measured}, but training.dtype is {used}; "
            "change it, or measure with 'dynapipe-hpc profile CONFIG -o TABLE.h5'"
        )

"""Measured costs, ready to plan with."""

from pathlib import Path

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import MeasuredCosts
from dynapipe_hpc.planner.cost.table.load_table import load_table


def read_cost_table(path: Path | str, shape: ModelShape, cluster: Cluster) -> MeasuredCosts:
    """Measured costs of a model, with every mode of recomputation that was measured.

    Args:
        path: A table of `dynapipe-hpc profile` (HDF5, needs the extra [hdf5]); or measurements
            NAME.csv with NAME_parameters.csv beside them.
        shape: The model that was measured.
        cluster: What the plans are for; modes are those measured for its `n_shards`.

    Raises:
        InputError: A file cannot be read.
    """
    path = Path(path)
    table = load_table(path, shape)
    measured = {key.recompute for key in table.layers if key.tensor_parallel == cluster.n_shards}
    modes = tuple(mode.text for mode in Recompute if mode.text in measured)
    config = ProfiledConfig.model_validate({"path": path, "recompute": modes or ("none",)})
    return MeasuredCosts(config, table)

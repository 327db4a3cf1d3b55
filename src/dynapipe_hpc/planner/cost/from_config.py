"""The costs that a configuration asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Part
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.import_csv import import_csv
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredCosts:
    """A cost table that was read."""

    config: ProfiledConfig
    table: ProfileTable


@dataclass(frozen=True, slots=True, eq=False)
class EstimatedCosts:
    """Rates of a machine, and a model whose family has no closed forms."""

    config: AnalyticConfig
    parts: Mapping[str, Part]


CostSource = AnalyticConfig | EstimatedCosts | MeasuredCosts
"""Estimates or measurements to make cost models of, with all files already read."""


def costs_of(
    source: CostSource, shape: ModelShape, placement: Placement, cluster: Cluster
) -> tuple[CostModel, Link]:
    """Cost model of estimates or of measurements."""
    if isinstance(source, AnalyticConfig):
        return analytic_cost(shape, placement, cluster, source), cluster.link
    if isinstance(source, EstimatedCosts):
        cost = analytic_cost(shape, placement, cluster, source.config, parts=source.parts)
        return cost, cluster.link
    measured = profiled_cost(source.table, shape, placement, cluster, config=source.config)
    return measured, source.table.link or cluster.link


def read_cost_table(path: Path | str, shape: ModelShape, cluster: Cluster) -> MeasuredCosts:
    """Measured costs of a model, with every mode of recomputation that was measured.

    Args:
        path: A table of `dynapipe-hpc profile` (HDF5, needs the extra [hdf5]); or measurements
            NAME.csv with NAME_parameters.csv beside them.
        shape: The model that was measured.
        cluster: What the plans are for; modes are those measured for its `n_shards`.
    """
    path = Path(path)
    table = load_table(path, shape)
    measured = {key.recompute for key in table.layers if key.tensor_parallel == cluster.n_shards}
    modes = tuple(mode.text for mode in Recompute if mode.text in measured)
    config = ProfiledConfig.model_validate({"path": path, "recompute": modes or ("none",)})
    return MeasuredCosts(config, table)


def load_table(path: Path, shape: ModelShape) -> ProfileTable:
    """A cost table (HDF5), or measurements as CSV with their parameters beside them.

    Raises `InputError`: A file cannot be read; or it is HDF5 and h5py is not installed.
    """
    if path.suffix.lower() == ".csv":
        return import_csv(path, parameters_beside(path), shape)
    with optional_packages():
        # Loads HDF5, which estimates and CSV do without.
        from dynapipe_hpc.planner.cost.table.profile_file import read_table
    return read_table(path)


def parameters_beside(profile: Path) -> Path:
    """Path at which the file of weight sizes for a file of measurements is expected."""
    return profile.with_name(f"{profile.stem}_parameters.csv")

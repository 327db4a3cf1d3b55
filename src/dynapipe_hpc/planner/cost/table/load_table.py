"""Measured costs from whatever file holds them."""

from pathlib import Path

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.extras import optional_packages
from dynapipe_hpc.planner.cost.table.import_csv import import_csv
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable


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
    """Expected path of the sizes of weights that belong to measurements."""
    return profile.with_name(f"{profile.stem}_parameters.csv")

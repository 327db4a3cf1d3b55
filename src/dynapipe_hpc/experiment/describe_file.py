"""Any file of ours, as text."""

from pathlib import Path

from dynapipe_hpc.data import dataset_header
from dynapipe_hpc.data.describe_dataset import describe_dataset
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.file_format import format_of
from dynapipe_hpc.planner.cost import profile_file
from dynapipe_hpc.planner.cost.describe_table import describe_table


def describe_file(path: Path) -> str:
    """Describes a dataset or a cost table.

    Raises:
        InputError: The file is neither, or damaged.
    """
    match format_of(path):
        case dataset_header.FORMAT:
            return describe_dataset(path)
        case profile_file.FORMAT:
            return describe_table(profile_file.read_table(path), path)
        case _:
            raise InputError(
                f"{path}: neither a dataset nor a cost table; dynapipe-hpc preprocess makes "
                "the former and dynapipe-hpc profile the latter"
            )

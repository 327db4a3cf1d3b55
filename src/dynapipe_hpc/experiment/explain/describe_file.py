"""Description of any file of this package as text."""

from functools import partial
from pathlib import Path

from dynapipe_hpc.data.dataset import dataset_header
from dynapipe_hpc.data.dataset.dataset_file import verify_dataset
from dynapipe_hpc.data.dataset.describe_dataset import describe_dataset
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.stored_file import format_of
from dynapipe_hpc.experiment.checks import check_costs, configured, describe_halves
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import with_cost_table
from dynapipe_hpc.planner.batch.longest_sample import Side, longest_row
from dynapipe_hpc.planner.batch.row_length import RowLengths
from dynapipe_hpc.planner.cost.from_config import costs_of
from dynapipe_hpc.planner.cost.table import profile_file
from dynapipe_hpc.planner.cost.table.describe_table import describe_table


def describe_file(path: Path) -> str:
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


def describe_for(config: ExperimentConfig, path: Path) -> str:
    """Describes how a dataset (or the mixture with it) or a cost table suits an experiment."""
    if format_of(path) != profile_file.FORMAT:
        is_mixed = config.data.mixture and path in map(Path, config.data.paths)
        data = config.data if is_mixed else config.data.alone(str(path))
        files = Experiment(config.model_copy(update={"data": data}))
        return describe_room(files.open(), files.rows)
    files = Experiment(with_cost_table(config, path))
    warning = check_costs(files.costs, configured(config))
    cost, _ = costs_of(files.costs, config.model, any_placement(config), config.cluster)
    halves = describe_halves(files.costs, config)
    lines = [
        f"can be used: costs {cost.describe()}",
        *([f"halves of backward passes: {halves}"] if halves else ()),
        *([warning] if warning else ()),
    ]
    return "\n".join(lines)


def verify_file(path: Path) -> str:
    """Verifies a dataset or a cost table by its checksum; returns a line that says so."""
    if format_of(path) != profile_file.FORMAT:
        return f"verified, sha256 of the samples {verify_dataset(path)}"
    return f"verified, checksum of the costs {profile_file.verify_table(path)}"


def describe_room(experiment: Experiment, rows: RowLengths) -> str:
    """Rates of a mixture, samples that are cut, and the longest that fits, by recomputation.

    Lengths are those of rows of one sample. For an encoder-decoder model: the longest input with
    the dataset's longest target, and the longest target with its longest input.
    """
    config = experiment.config
    cost = experiment.planner.cost.of_layout(experiment.config.planner.plainest_layout)
    inputs, targets = int(rows.row_tokens.max()), int(rows.target_tokens.max())

    def line(what: str, side: Side, longest: int, other_tokens: int) -> str:
        find = partial(longest_row, cost, config.cluster, side=side, other_tokens=other_tokens)
        most, multiple = config.model.max_tokens, config.planner.document_multiple
        parts = (f"{m.text} {find(m, most, multiple=multiple):,}" for m in cost.recompute_modes)
        return (
            f"{what}: {', '.join(parts)} tokens of at most {most:,}; the dataset's longest "
            f"{longest:,}"
        )

    if cost.is_encoder_decoder:
        room = [
            line(f"inputs, beside targets of {targets:,} tokens", "row_tokens", inputs, targets),
            line(f"targets, beside inputs of {inputs:,} tokens", "target_tokens", targets, inputs),
        ]
    else:
        room = [line("samples", "row_tokens", inputs, 0)]
    first = f"longest rows that fit, costs {cost.describe()}"
    return "\n".join([*experiment.data_lines, first, *room])

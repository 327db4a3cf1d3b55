"""Description of a dataset or a cost table as an experiment would use it."""

from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.stored_file import format_of
from dynapipe_hpc.experiment.checks import check_costs, configured
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import with_cost_table
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE, RowLengths
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes
from dynapipe_hpc.planner.cost.from_config import costs_of
from dynapipe_hpc.planner.cost.table import profile_file

Side = Literal["row_tokens", "target_tokens"]


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
    lines = [
        f"can be used: costs {cost.describe()}",
        *([warning] if warning else ()),
    ]
    return "\n".join(lines)


def describe_room(experiment: Experiment, rows: RowLengths) -> str:
    """Rates of a mixture, samples that are cut, and the longest row that fits in each mode.

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
            line(f"inputs, with targets of {targets:,} tokens", "row_tokens", inputs, targets),
            line(f"targets, with inputs of {inputs:,} tokens", "target_tokens", targets, inputs),
        ]
    else:
        room = [line("samples", "row_tokens", inputs, 0)]
    first = f"longest rows that fit, costs {cost.describe()}"
    return "\n".join([*experiment.data_lines, first, *room])


def longest_row(
    cost: CostModel,
    cluster: Cluster,
    recompute: Recompute,
    max_tokens: int,
    *,
    side: Side = "row_tokens",
    other_tokens: int = 0,
    multiple: int = ROW_MULTIPLE,
) -> int:
    """Length in tokens of the longest padded row that, as a micro-batch, fits on every stage.

    `recompute`: Mode of recomputation, one of `cost`'s modes. `side`: Side of the row in an
    encoder-decoder model; otherwise row_tokens. Returns a multiple of `multiple`, at most
    `max_tokens`; 0 if none fits.
    """
    tokens = np.arange(multiple, max_tokens + 1, multiple)
    other = np.full_like(tokens, other_tokens)
    sides = (tokens, other) if side == "row_tokens" else (other, tokens)
    costs = cost.stage_costs(Shapes.padded(np.ones_like(tokens), *sides), recompute)
    too_long = np.flatnonzero(~fits(costs, activation_room_bytes(cost, cluster)))
    n_fitting = too_long[0] if too_long.size else len(tokens)
    return int(n_fitting * multiple)

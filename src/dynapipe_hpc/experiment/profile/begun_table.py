"""A cost table to which a profile adds."""

import math
from collections.abc import Mapping
from itertools import product, starmap
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, Recompute
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.profile.bench import has_slices
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.rank.host_device import circumstances, find_host_device
from dynapipe_hpc.experiment.split_passes import kinds_with_halves
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.table.profile_file import read_table
from dynapipe_hpc.planner.cost.table.profile_table import (
    LayerKey,
    LayerProfile,
    ProfileTable,
    check_model,
)

# Measurements with different settings must not share a table.
SETTINGS = (
    *("processor", "ranks", "threads", "dtype", "zero_stage"),
    *("sequence_parallel", "shard_sums", "microbatches"),
)
_REMEDY = "name another output, or measure everything again with --force"


def begun_table(
    path: Path, config: ExperimentConfig, grid: ProfileGrid, n_ranks: int
) -> ProfileTable | None:
    """The table at `path`, to add to it; None if there is no file.

    Raises:
        InputError: The file is no table, or was measured with other settings.
    """
    if not path.exists():
        return None
    table = read_table(path)
    check_model(table.model, config.model, path)
    now = measured_with(config, grid, n_ranks)
    for name in SETTINGS:
        if table.provenance.get(name) != now[name]:
            raise InputError(
                f"{path}: was measured with {name} {table.provenance.get(name)}; this run "
                f"uses {now[name]}; {_REMEDY}"
            )
    return table


def measured_with(config: ExperimentConfig, grid: ProfileGrid, n_ranks: int) -> dict[str, str]:
    """Facts about a measurement, for the table's provenance."""
    host = find_host_device(config)
    return circumstances(config, host, n_ranks) | {"microbatches": str(grid)}


def modes_to_measure(config: ExperimentConfig, begun: ProfileTable | None) -> list[ExecutionMode]:
    """Layouts with modes of recomputation that plans may use and that the table lacks.

    It lacks those, too, that it has without the halves of backward passes which plans may split, or
    without the slices which they may have.
    Padded rows are among them always: other plans are compared with those.
    """
    cost = config.planner.cost
    recomputes = cost.recompute_modes if isinstance(cost, ProfiledConfig) else (Recompute.NONE,)
    known = {} if begun is None else begun.layers
    layouts = (Layout.PADDED, Layout.PACKED) if config.planner.may_pack else (Layout.PADDED,)
    modes = starmap(ExecutionMode, product(layouts, recomputes))
    return [mode for mode in modes if not _is_measured(mode, config, known)]


def _is_measured(
    mode: ExecutionMode, config: ExperimentConfig, known: Mapping[LayerKey, LayerProfile]
) -> bool:
    *_, kind = config.model.layer_counts
    key = LayerKey(config.cluster.n_shards, mode.recompute.text, kind, mode.layout.text)
    if key not in known:
        return False
    needs_halves = kind in kinds_with_halves(config, mode.recompute)
    needs_pairs = has_slices(config, mode.layout)
    layer = known[key]
    lacks_halves = needs_halves and layer.input_ms is None
    has_windows = math.isfinite(config.model.window)
    has_pairs = layer.pair_ms is not None and (layer.near_pair_ms is not None or not has_windows)
    return not (lacks_halves or (needs_pairs and not has_pairs))

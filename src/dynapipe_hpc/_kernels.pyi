# What the kernels promise stands in cpp/include/dynapipe, one header per kernel. `costs` is the
# table of StageCosts.

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Returns (sizes, objective_ms, n_solves).
def split_samples(
    length_of_sample: npt.NDArray[np.int32],
    begin: npt.NDArray[np.int64],
    work_ms: npt.NDArray[np.float64],
    fill_ms: npt.NDArray[np.float64],
    n_replicas: int,
) -> tuple[list[int], float, int]: ...

# Returns (fill_ms, work_ms, sizes) of each split, most fill first.
def split_front(
    length_of_sample: npt.NDArray[np.int32],
    begin: npt.NDArray[np.int64],
    work_ms: npt.NDArray[np.float64],
    fill_ms: npt.NDArray[np.float64],
) -> list[tuple[float, float, list[int]]]: ...

# Returns pass codes of shape (n_stages, n_passes).
def cyclic_schedule(
    costs: npt.NDArray[np.float64],
    limit_bytes: npt.NDArray[np.float64],
) -> npt.NDArray[np.int32]: ...

# Returns pass codes of shape (n_stages, n_passes).
def list_schedule(
    costs: npt.NDArray[np.float64],
    limit_bytes: npt.NDArray[np.float64],
    latency_ms: float,
    bytes_per_ms: float,
    full_duplex: bool,
    split_backward: bool,
) -> npt.NDArray[np.int32]: ...

# Windows of shape (n, 3): first, size, mode. Returns plans of (windows per replica, makespan_ms,
# memory_price, longest_ms, balances_fill, n_rebalanced).
def construct_plans(
    costs: npt.NDArray[np.float64],
    cells: npt.NDArray[np.int32],
    spans: npt.NDArray[np.int64],
    row_of_sample: npt.NDArray[np.int32],
    limit_bytes: npt.NDArray[np.float64],
    latency_ms: float,
    bytes_per_ms: float,
    full_duplex: bool,
    split_backward: bool,
    n_replicas: int,
    n_kept: int,
    n_refined: int,
) -> list[tuple[list[npt.NDArray[np.uint32]], float, float, float, bool, int]]: ...
def least_makespan_ms(
    costs: npt.NDArray[np.float64],
    cells: npt.NDArray[np.int32],
    spans: npt.NDArray[np.int64],
    row_of_sample: npt.NDArray[np.int32],
    limit_bytes: npt.NDArray[np.float64],
    latency_ms: float,
    bytes_per_ms: float,
    full_duplex: bool,
    split_backward: bool,
    n_replicas: int,
) -> float: ...
def makespans_ms(
    costs: npt.NDArray[np.float64],
    cells: npt.NDArray[np.int32],
    spans: npt.NDArray[np.int64],
    row_of_sample: npt.NDArray[np.int32],
    limit_bytes: npt.NDArray[np.float64],
    latency_ms: float,
    bytes_per_ms: float,
    full_duplex: bool,
    split_backward: bool,
    plans: Sequence[Sequence[npt.NDArray[np.uint32]]],
) -> list[float]: ...

# Returns plans of (windows per replica, makespan_ms, effort, n_moves), the best last.
def improve_plan(
    costs: npt.NDArray[np.float64],
    cells: npt.NDArray[np.int32],
    spans: npt.NDArray[np.int64],
    row_of_sample: npt.NDArray[np.int32],
    limit_bytes: npt.NDArray[np.float64],
    latency_ms: float,
    bytes_per_ms: float,
    full_duplex: bool,
    split_backward: bool,
    starts: Sequence[Sequence[npt.NDArray[np.uint32]]],
    effort: int,
    seed: int,
) -> list[tuple[list[npt.NDArray[np.uint32]], float, int, int]]: ...

# Returns (start_ms, end_ms, send_start_ms, send_end_ms, peak_bytes, busy_ms, n_started,
# makespan_ms).
def simulate(
    order: npt.NDArray[np.int32],
    costs: npt.NDArray[np.float64],
    static_bytes: npt.NDArray[np.float64],
    latency_ms: float,
    bytes_per_ms: float,
    full_duplex: bool,
) -> tuple[
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.uint64],
    float,
]: ...

# Returns pass codes of the shape of `order`.
def refine_schedule(
    order: npt.NDArray[np.int32],
    costs: npt.NDArray[np.float64],
    limit_bytes: npt.NDArray[np.float64],
    latency_ms: float,
    bytes_per_ms: float,
    full_duplex: bool,
    n_moves: int,
    seed: int,
) -> npt.NDArray[np.int32]: ...

# Returns (cells, row after row; of every shape n_rows, row_tokens, target_tokens).
def window_shapes(
    row_tokens: npt.NDArray[np.int64],
    target_tokens: npt.NDArray[np.int64],
    begin: npt.NDArray[np.int64],
    first: npt.NDArray[np.int64],
    most: npt.NDArray[np.int64],
) -> tuple[
    npt.NDArray[np.int32],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
    npt.NDArray[np.int64],
]: ...

# Rewrites `cells`.
def use_windows(
    cells: npt.NDArray[np.int32],
    most: npt.NDArray[np.int64],
    fits: npt.NDArray[np.bool_],
    largest: npt.NDArray[np.int64],
    first: int,
) -> None: ...

# Returns (work_ms, fill_ms, memory_share), one entry per micro-batch.
def rate_costs(
    costs: npt.NDArray[np.float64],
    room_bytes: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...

# Returns (begin of shape (n_rows + 1,); of every window work_ms, fill_ms, mode).
def cheapest_modes(
    cells: npt.NDArray[np.int32],
    spans: npt.NDArray[np.int64],
    work_ms: npt.NDArray[np.float64],
    fill_ms: npt.NDArray[np.float64],
    memory_share: npt.NDArray[np.float64],
    largest_share: float,
) -> tuple[
    npt.NDArray[np.int64],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.int32],
]: ...

# Returns per stage its rows of shape (n_instructions, 5).
def place_transfers(
    order: npt.NDArray[np.int32],
    end_ms: npt.NDArray[np.float64],
    peers: npt.NDArray[np.uint32],
) -> list[npt.NDArray[np.uint32]]: ...

# Returns None, or a fault: rule, stage, position, microbatch, detail.
def check_pipeline(
    rows: list[npt.NDArray[np.uint32]],
    ranks: npt.NDArray[np.uint32],
    bounds: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> tuple[int, int, int, int, int] | None: ...
def peak_bytes(
    rows: npt.NDArray[np.uint32],
    bounds: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> int: ...

# `points` has shape (rows, row_tokens, target_tokens, n_kinds, 7), `boundary_bytes_per_token`
# (n_stages, 2). Returns costs of shape (n_shapes, n_stages, 7).
def interpolate_costs(
    rows: npt.NDArray[np.int64],
    row_tokens: npt.NDArray[np.int64],
    target_tokens: npt.NDArray[np.int64],
    points: npt.NDArray[np.float64],
    kind_of_stage: npt.NDArray[np.int32],
    boundary_bytes_per_token: npt.NDArray[np.float64],
    shape_rows: npt.NDArray[np.int64],
    shape_row_tokens: npt.NDArray[np.int64],
    shape_target_tokens: npt.NDArray[np.int64],
    costs: npt.NDArray[np.float64],
) -> None: ...

# Returns indices of the points in order.
def short_tour(
    x: npt.NDArray[np.int64], y: npt.NDArray[np.int64], reach: int
) -> npt.NDArray[np.int64]: ...

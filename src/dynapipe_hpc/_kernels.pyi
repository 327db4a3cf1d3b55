# What the kernels promise stands in cpp/include/dynapipe, one header per kernel. `costs` is the
# table of StageCosts.

from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

# Columns of `costs`.
class Cost(IntEnum):
    FORWARD_MS = 0
    BACKWARD_MS = 1
    WEIGHT_MS = 2
    SPLITTING_MS = 3
    BOUNDARY_BYTES = 4
    STORED_BYTES = 5
    FORWARD_TRANSIENT_BYTES = 6
    BACKWARD_TRANSIENT_BYTES = 7

class Link:
    def __init__(self, latency_ms: float, bytes_per_ms: float, full_duplex: bool) -> None: ...

# The arrays become read-only.
class CostTable:
    def __init__(
        self,
        costs: npt.NDArray[np.float64],
        kind_of_stage: npt.NDArray[np.int32] | None = None,
    ) -> None: ...

class WindowCosts:
    def __init__(
        self,
        costs: CostTable,
        cells: npt.NDArray[np.int32],
        spans: npt.NDArray[np.int64],
        row_of_sample: npt.NDArray[np.int32],
        first_slice: npt.NDArray[np.int32] = ...,
        later_slices: npt.NDArray[np.uint32] = ...,
    ) -> None: ...

# Returns the items of every replica.
def balance_work(work_ms: npt.NDArray[np.float64], n_replicas: int) -> list[list[int]]: ...

# Returns pass codes of shape (n_stages, n_passes).
def cyclic_schedule(
    costs: CostTable,
    limit_bytes: npt.NDArray[np.float64],
) -> npt.NDArray[np.int32]: ...

# Returns pass codes of shape (n_stages, n_passes).
def list_schedule(
    costs: CostTable,
    limit_bytes: npt.NDArray[np.float64],
    link: Link,
    split_backward: bool,
    later_slices: npt.NDArray[np.uint32] | None = None,
    reduce_ms: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[np.int32]: ...

# Windows of every replica have shape (n, 3): first, size, mode.
class FoundPlan:
    @property
    def replicas(self) -> list[npt.NDArray[np.uint32]]: ...
    @property
    def makespan_ms(self) -> float: ...
    @property
    def effort(self) -> int: ...
    @property
    def n_moves(self) -> int: ...

# Of every table of windows; the best plan of each comes last.
def find_plans(
    windows: list[WindowCosts],
    limit_bytes: npt.NDArray[np.float64],
    link: Link,
    split_backward: bool,
    reduce_ms: npt.NDArray[np.float64],
    slowness: npt.NDArray[np.float64],
    effort: int,
    seed: int,
) -> list[list[FoundPlan]]: ...

class Timeline:
    @property
    def start_ms(self) -> npt.NDArray[np.float64]: ...
    @property
    def end_ms(self) -> npt.NDArray[np.float64]: ...
    @property
    def send_start_ms(self) -> npt.NDArray[np.float64]: ...
    @property
    def send_end_ms(self) -> npt.NDArray[np.float64]: ...
    @property
    def peak_bytes(self) -> npt.NDArray[np.float64]: ...
    @property
    def busy_ms(self) -> npt.NDArray[np.float64]: ...
    @property
    def n_started(self) -> npt.NDArray[np.uint64]: ...
    @property
    def makespan_ms(self) -> float: ...

def simulate(
    order: npt.NDArray[np.int32],
    costs: CostTable,
    static_bytes: npt.NDArray[np.float64],
    link: Link,
) -> Timeline: ...

# `layouts`: whether windows are packed, and the limit on their tokens. `known`: see KnownRows.
# `price` gets the indices of a layout and mode, the columns of Shapes, and a table of costs to
# fill, shape (n_shapes, n_kinds, len(Cost)). Returns costs, cells, spans, rows of bundles, and the
# columns of Shapes.
def price_windows(
    inputs: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    n_documents: npt.NDArray[np.int64],
    pairs: npt.NDArray[np.int64],
    begin: npt.NDArray[np.int64],
    is_packed: list[bool],
    most_tokens: float,
    token_multiple: int,
    known: tuple[float, float, float],
    room_bytes: npt.NDArray[np.float64],
    kind_of_stage: npt.NDArray[np.int32] | None,
    n_modes: int,
    price: Callable[..., None],
) -> tuple[
    npt.NDArray[np.float64],
    npt.NDArray[np.int32],
    npt.NDArray[np.int64],
    npt.NDArray[np.int32],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
    npt.NDArray[np.float64],
]: ...

# `sums` are those of SampleSums. Returns the columns of Shapes.
def equal_rows(
    row_tokens: int,
    target_tokens: int,
    sums: tuple[int, int, int, int, int],
    known: tuple[float, float, float],
) -> tuple[float, float, float, float]: ...

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
    earlier_slice: npt.NDArray[np.uint32],
) -> tuple[int, int, int, int, int] | None: ...
def peak_bytes(
    rows: npt.NDArray[np.uint32],
    bounds: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> int: ...

# `points` has shape (rows, row_tokens, target_tokens, n_kinds, len(Cost)), `most_tokens`
# (n_kinds,), `boundary_bytes_per_token` (n_kinds, 2). Writes `costs` of shape (n_shapes, n_kinds,
# len(Cost)).
def interpolate_costs(
    rows: npt.NDArray[np.int64],
    row_tokens: npt.NDArray[np.int64],
    target_tokens: npt.NDArray[np.int64],
    points: npt.NDArray[np.float64],
    most_tokens: npt.NDArray[np.float64],
    boundary_bytes_per_token: npt.NDArray[np.float64],
    shape_rows: npt.NDArray[np.float64],
    shape_row_tokens: npt.NDArray[np.float64],
    shape_target_tokens: npt.NDArray[np.float64],
    costs: npt.NDArray[np.float64],
) -> None: ...

# What each array holds by layer: see estimate_costs.hpp. `rates` are those of Rates, in order.
# Writes `costs` of shape (n_shapes, n_kinds, len(Cost)).
def estimate_costs(
    sides: npt.NDArray[np.int32],
    windows: npt.NDArray[np.float64],
    needs: npt.NDArray[np.float64],
    own_bytes: npt.NDArray[np.float64],
    rates: tuple[float, float, float, float, float, float],
    counts: npt.NDArray[np.float64],
    boundaries: npt.NDArray[np.float64],
    n_rows: npt.NDArray[np.float64],
    row_tokens: npt.NDArray[np.float64],
    target_tokens: npt.NDArray[np.float64],
    input_rows: npt.NDArray[np.float64],
    costs: npt.NDArray[np.float64],
) -> None: ...

# Returns counts of shape (n_shapes, 7).
def token_counts(
    side: int,
    window: float,
    n_rows: npt.NDArray[np.float64],
    row_tokens: npt.NDArray[np.float64],
    target_tokens: npt.NDArray[np.float64],
    input_rows: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]: ...

# Adds to `costs`, whose last axis is that of Cost.
def add_costs(costs: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> None: ...

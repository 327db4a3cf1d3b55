from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import decoder_shapes
from tests.examples.measured_layers import (
    SHAPE,
    T5_SHAPE,
    linear_t5_table,
    linear_table,
    with_packed,
)

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes
from dynapipe_hpc.planner.cost.function_cost import FunctionCost
from dynapipe_hpc.planner.cost.pass_times import Corrections, corrected_cost
from dynapipe_hpc.planner.cost.profiled import profiled_cost

CLUSTER = Cluster(n_stages=3, device_memory_bytes=10**9)
EQUAL = equal_shares(SHAPE, CLUSTER)  # a T5 of half the layers per side has as many
MODELS: dict[str, Callable[[], CostModel]] = {
    "analytic": lambda: analytic_cost(SHAPE, EQUAL, CLUSTER, AnalyticConfig()),
    "analytic in a mode": lambda: analytic_cost(
        SHAPE, EQUAL, CLUSTER, AnalyticConfig(recompute=("none", "selective"))
    ),
    "analytic T5": lambda: analytic_cost(
        T5_SHAPE, EQUAL, CLUSTER, AnalyticConfig(recompute=("full",))
    ),
    "analytic T5 in a mode": lambda: analytic_cost(
        T5_SHAPE, EQUAL, CLUSTER, AnalyticConfig(recompute=("selective",))
    ),
    "analytic, corrected": lambda: corrected_cost(
        analytic_cost(SHAPE, EQUAL, CLUSTER, AnalyticConfig(recompute=("none", "full"))),
        Corrections(np.random.default_rng(0).uniform(0.5, 2, (3, 3, 3, 3)), np.ones((2, 3))),
    ),
    "functions": lambda: FunctionCost(
        lambda n, m: 1 + n * m**1.5, lambda n, m: n * m, (0.2, 0.5, 0.3), hidden_size=8
    ).cost_model(),
    "profiled": lambda: profiled_cost(
        linear_table(), SHAPE, EQUAL, CLUSTER, config=ProfiledConfig(path=Path("costs.h5"))
    ),
    "profiled in a mode": lambda: profiled_cost(
        linear_table("full"),
        SHAPE,
        EQUAL,
        CLUSTER,
        config=ProfiledConfig(path=Path("t.h5"), recompute=("full",)),
    ),
    "profiled, packed": lambda: profiled_cost(
        with_packed(linear_table(), 0.75),
        SHAPE,
        EQUAL,
        CLUSTER,
        config=ProfiledConfig(path=Path("costs.h5")),
    ).of_layout(Layout.PACKED),
    "profiled T5, packed": lambda: profiled_cost(
        linear_t5_table(), T5_SHAPE, EQUAL, CLUSTER, config=ProfiledConfig(path=Path("costs.h5"))
    ).of_layout(Layout.PACKED),
    "profiled T5": lambda: profiled_cost(
        linear_t5_table(), T5_SHAPE, EQUAL, CLUSTER, config=ProfiledConfig(path=Path("costs.h5"))
    ),
}
Size = tuple[int, int, int]
SIZES = st.tuples(st.integers(1, 12), st.integers(1, 80), st.integers(1, 80))


@pytest.fixture(params=list(MODELS), scope="module")
def cost(request: pytest.FixtureRequest) -> CostModel:
    return MODELS[request.param]()


def shapes_of(cost: CostModel, sizes: list[Size]) -> Shapes:
    """Without targets where the model has none."""
    n_rows, row_tokens, target_tokens = np.array(sizes).T.copy()
    if not cost.is_encoder_decoder:
        return decoder_shapes(n_rows, row_tokens)
    return Shapes.padded(n_rows, row_tokens, target_tokens)


def everything(cost: CostModel, sizes: list[Size]) -> FloatArray:
    """All quantities that grow, shape (5, n_microbatches, n_stages)."""
    costs = cost.stage_costs(shapes_of(cost, sizes), cost.recompute_modes[-1])
    return np.stack(
        [
            costs.forward_ms,
            costs.backward_ms,
            costs.stored_bytes,
            costs.forward_transient_bytes,
            costs.backward_transient_bytes,
        ]
    )


@given(size=SIZES, more=st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(0, 40)))
def test_a_larger_micro_batch_never_costs_less(cost: CostModel, size: Size, more: Size) -> None:
    larger_size = (size[0] + more[0], size[1] + more[1], size[2] + more[2])
    smaller, larger = everything(cost, [size, larger_size]).swapaxes(0, 1)
    assert (larger >= smaller * (1 - 1e-12)).all()


@given(size=SIZES)
def test_costs_are_positive_and_finite_or_all_infinite(cost: CostModel, size: Size) -> None:
    found = everything(cost, [size])
    assert (found[:3] > 0).all()
    assert (found >= 0).all()
    assert (np.isinf(found).all(axis=0) | np.isfinite(found).all(axis=0)).all()


@given(size=SIZES)
@example(size=(7, 45, 64))  # beyond what the table of the T5 holds
def test_gradients_of_weights_are_a_part_of_the_backward_pass(cost: CostModel, size: Size) -> None:
    for mode in cost.recompute_modes:
        costs = cost.stage_costs(shapes_of(cost, [size]), mode)
        assert (costs.weight_ms >= 0).all()  # none waits in blocks that are recomputed
        assert (costs.weight_ms <= costs.backward_ms * (1 + 1e-12)).all()
        assert (np.isinf(costs.weight_ms) == np.isinf(costs.backward_ms)).all()

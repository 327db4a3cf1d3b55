import numpy as np
from tests.examples.equal_shares import equal_shares
from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import changed, linear_cost, packed_apart
from tests.examples.measured_layers import T5_SHAPE

from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.order import halved, order_samples, orders
from dynapipe_hpc.planner.choose.best_of_search import BestOfSearch, search_spaces
from dynapipe_hpc.planner.cost.analytic import analytic_cost
from dynapipe_hpc.planner.cost.config import AnalyticConfig
from dynapipe_hpc.planner.cost.cost_model import Shapes, StageCosts
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.search.config import SearchConfig

COST = linear_cost((1.0, 2.0), (0.02, 0.03), recomputes=True)
TWO_STAGES = Cluster(n_stages=2, device_memory_bytes=10**9)
BOTH = (Layout.PADDED, Layout.PACKED)
SAMPLES = samples_of([100, 3, 9, 97, 11, 16, 40, 41])


def test_packed_rows_have_an_order_of_equal_halves_besides() -> None:
    by_length, equal = search_spaces(SAMPLES, COST, TWO_STAGES, layouts=BOTH)
    assert by_length.samples == order_samples(SAMPLES)
    assert equal.samples == halved(order_samples(SAMPLES))
    assert {mode.layout for mode in equal.modes} == {Layout.PACKED}


def test_samples_that_run_padded_only_leave_out_the_order_of_packed_rows() -> None:
    padded, packed = (
        linear_cost((1.0, 2.0), (0.02, 0.03), token_bytes=each) for each in (2.0, 1000.0)
    )
    cost = packed_apart(padded, packed)
    cluster = TWO_STAGES.model_copy(update={"device_memory_bytes": 50_000})
    (table,) = search_spaces(SAMPLES, cost, cluster, layouts=BOTH)
    assert table.samples == order_samples(SAMPLES)


def test_pairs_have_a_tour_besides() -> None:
    rates = AnalyticConfig(flops_per_ms=1e6, memory_bytes_per_ms=1e6)
    cost = analytic_cost(T5_SHAPE, equal_shares(T5_SHAPE, TWO_STAGES), TWO_STAGES, rates)
    samples = [Sample(i, n, 30 - n) for i, n in enumerate(range(2, 26, 3))]
    tables = list(search_spaces(samples, cost, TWO_STAGES))
    assert [table.samples for table in tables] == orders(samples, is_encoder_decoder=True)
    assert len(list(search_spaces(samples, cost, TWO_STAGES, layouts=BOTH))) == 3


def short_rows(shapes: Shapes, costs: StageCosts) -> StageCosts:
    """A device that waits for launches: up to 512 tokens take as long, and more do not fit."""
    costs.table[shapes.n_rows * shapes.row_tokens > 512] = np.inf
    return costs


def test_as_few_full_rows_are_found_as_hold_all_tokens() -> None:
    lengths = np.random.default_rng(0).lognormal(3.5, 0.8, 200).clip(4, 256).astype(int).tolist()
    while sum(lengths) > 8 * 512 - 40:
        lengths.pop()
    cost = changed(linear_cost((10.0,), (1e-6,)), short_rows)
    cluster = Cluster(n_replicas=4, n_stages=1, device_memory_bytes=10**9)
    search = BestOfSearch([adaptive], SearchConfig(effort=0), cost, cluster, (Layout.PACKED,))
    pipelines = search.choose(samples_of(lengths)).pipelines
    assert [len(pipeline.microbatches) for pipeline in pipelines] == [2] * 4

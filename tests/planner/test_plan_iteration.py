"""`plan_iteration`, with costs of the package and of its user."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples.equal_shares import equal_shares
from tests.examples.linear_cost import decoder_shapes, samples_of
from tests.examples.measured_layers import SHAPE, linear_table

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.plan.check import check_plans
from dynapipe_hpc.plan.cluster import Cluster, Link
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.plan.rank_plan import grid
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.config import PlannerConfig
from dynapipe_hpc.planner.cost.config import AnalyticConfig, ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import read_cost_table
from dynapipe_hpc.planner.cost.function_cost import FunctionCost
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.from_config import read_costs
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.plan_iteration import plan_iteration

GPT = GptShape(n_layers=4, hidden_size=64, n_heads=4, ffn_size=256, vocab_size=1000, max_tokens=512)
T5 = T5Shape.model_validate({**GPT.model_dump(exclude_defaults=True), "head_size": 16})
CLUSTER = Cluster(n_replicas=2, n_stages=2, device_memory_bytes="1GB")
EQUAL = equal_shares(GPT, CLUSTER)
LENGTHS = [12, 512, 37, 90, 33, 250, 8, 61]


def test_the_plans_are_those_of_a_configuration() -> None:
    cost = AnalyticConfig(recompute=("none", "selective", "full"))
    many, found = range(5, 500, 9), []
    for effort in (SearchConfig().effort, 0):
        config = PlannerConfig(cost=cost, batch=DynamicConfig(), search={"effort": effort})
        planner = Planner.from_config(
            config, cost, GPT, EQUAL, cluster=CLUSTER, max_tokens=GPT.max_tokens
        )
        found.append(plan_iteration(many, GPT, CLUSTER, effort=effort))
        assert found[-1] == planner.make_plans(0, samples_of(many))
    assert found[0] != found[1]
    assert found[0] == plan_iteration(many, GPT, CLUSTER)


def test_packed_rows_may_be_longer_than_a_sample_may_be() -> None:
    batch = DynamicConfig(layouts=("packed",), token_multiple=1024)
    plans = plan_iteration(LENGTHS, GPT, CLUSTER, batch=batch)
    check_plans(plans)
    assert {m.row_tokens for p in plans for m in p.microbatches} == {1024}


def test_pairs_of_a_t5_have_rows_on_both_sides() -> None:
    plans = plan_iteration([(30, 5), (200, 40)], T5, CLUSTER)
    rows = {(m.row_tokens, m.target_tokens) for plan in plans for m in plan.microbatches}
    assert rows == {(32, 8), (200, 40)}
    assert grid(plan_iteration(np.array([(30, 5), (200, 40)]), T5, CLUSTER)) == grid(plans)


@pytest.mark.parametrize(
    ("lengths", "shape", "message"),
    [
        ([], GPT, "lengths is empty"),
        ([5, 0], GPT, r"lengths\[1\] is 0; a sample needs at least one token"),
        ([5, (3, 0)], GPT, r"lengths\[1\] is \(3, 0\); .* a pair needs at least one target token"),
        ([5, (-1, 2)], GPT, r"lengths\[1\] is \(-1, 2\)"),
        ([5, 3], T5, r"lengths\[0\] is 5; an encoder-decoder model needs pairs"),
        ([5, 513], GPT, "sample 1 .512 input .* model.max_tokens is 512; raise it"),
    ],
)
def test_lengths_that_no_plan_can_hold_are_refused(
    lengths: list[int | tuple[int, int]], shape: ModelShape, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        plan_iteration(lengths, shape, CLUSTER)


def test_the_default_placement_is_equal_shares_and_another_changes_the_plan() -> None:
    found = plan_iteration(LENGTHS, GPT, CLUSTER)
    assert plan_iteration(LENGTHS, GPT, CLUSTER, placement=EQUAL) == found
    moved = plan_iteration(LENGTHS, GPT, CLUSTER, placement=Placement((3, 1)))
    assert moved[0].memory.static > found[0].memory.static
    assert moved[1].memory.static < found[1].memory.static


@pytest.mark.parametrize("counts", [(4,), (2, 1), (2, 3), (4, 0), (1, 1, 2)])
def test_a_placement_of_other_layers_or_stages_is_refused(counts: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"layers per stage are \(.*4 layers for 2 stages"):
        plan_iteration(LENGTHS, GPT, CLUSTER, placement=Placement(counts))


def test_a_cost_table_brings_its_link_and_the_modes_of_as_many_shards(tmp_path: Path) -> None:
    layers = {**linear_table("none").layers, **linear_table("full").layers}
    other = {key._replace(tensor_parallel=2, recompute="selective"): v for key, v in layers.items()}
    table = replace(linear_table(), layers={**layers, **other})
    path = tmp_path / "costs.h5"
    write_table(table, path)
    cluster = Cluster(n_stages=2, device_memory_bytes="1GB", link=Link(latency_ms=9))
    config = ProfiledConfig(path=path, recompute=("none", "full"))
    planner = Planner.from_config(
        PlannerConfig(cost=config, batch=DynamicConfig()),
        read_costs(config, SHAPE),
        SHAPE,
        equal_shares(SHAPE, cluster),
        cluster=cluster.model_copy(update={"link": table.link}),
        max_tokens=SHAPE.max_tokens,
    )
    lengths = [12, 60, 33, 20]
    costs = read_cost_table(str(path), SHAPE, cluster)
    assert costs.config == config
    expected = planner.make_plans(0, samples_of(lengths))
    assert plan_iteration(lengths, SHAPE, cluster, costs) == expected


def least_ms(
    lengths: Sequence[int], n_replicas: int, micro_batch_ms: Callable[[list[int]], float]
) -> float:
    """Least time of the slowest replica, over all set partitions and all ways to hand them out."""
    alone_ms: dict[tuple[int, ...], float] = {}

    def fewest_ms(members: tuple[int, ...]) -> float:
        """Least time of one replica: the micro-batch of its first sample, and the rest."""
        if not members:
            return 0.0
        if members not in alone_ms:
            first, *others = members
            alone_ms[members] = min(
                micro_batch_ms([lengths[i] for i in (first, *chosen)])
                + fewest_ms(tuple(i for i in others if i not in chosen))
                for chosen in _subsets(others)
            )
        return alone_ms[members]

    samples = range(len(lengths))
    return min(
        max(fewest_ms(tuple(i for i in samples if owner[i] == r)) for r in range(n_replicas))
        for owner in _owners(len(lengths), n_replicas)
        if len(set(owner)) == n_replicas
    )


def _subsets(items: Sequence[int]) -> Iterator[tuple[int, ...]]:
    for bits in range(1 << len(items)):
        yield tuple(item for k, item in enumerate(items) if bits >> k & 1)


def _owners(n: int, n_replicas: int) -> Iterator[tuple[int, ...]]:
    """Replica of each sample; the first sample is on the first, as replicas are alike."""
    for number in range(n_replicas ** (n - 1)):
        yield (0, *(number // n_replicas**k % n_replicas for k in range(n - 1)))


LIMIT = 160
REPLICAS = Cluster(n_replicas=2, device_memory_bytes=LIMIT)


def quadratic_ms(n_rows: float, row_tokens: float) -> float:
    """A launch, linear maps, and attention."""
    return 3 + n_rows * (0.05 * row_tokens + 0.001 * row_tokens**2)


def tokens(n_rows: float, row_tokens: float) -> float:
    """Padded tokens, which the cluster limits."""
    return n_rows * row_tokens


def padded_ms(lengths: list[int]) -> float:
    """The same by hand, for the samples of a micro-batch in rows of a multiple of 8 tokens."""
    row = -(-max(lengths) // 8) * 8
    if len(lengths) * row > LIMIT:
        return math.inf
    return 3.0 + sum(0.05 * row + 0.001 * row * row for _ in lengths)


def packed_ms(lengths: list[int]) -> float:
    """Likewise for one row of all samples; those below have lengths of a multiple of 8."""
    if sum(lengths) > LIMIT:
        return math.inf
    return 3.0 + sum(0.05 * n + 0.001 * n * n for n in lengths)


@pytest.mark.parametrize("n_replicas", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_replicas_are_as_balanced_as_any_division_allows(seed: int, n_replicas: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 120, 7).tolist()
    cost = FunctionCost(quadratic_ms, tokens)
    cluster = Cluster(n_replicas=n_replicas, device_memory_bytes=LIMIT)
    plans = plan_iteration(lengths, cost, cluster)
    best_ms = least_ms(lengths, n_replicas, padded_ms)
    assert plans[0].prediction.iteration_ms == pytest.approx(best_ms)


def test_packed_samples_are_nearly_as_balanced_as_any_division_allows() -> None:
    ratios = []
    for seed in range(8):
        lengths = (8 * np.random.default_rng(seed).integers(1, 15, 7)).tolist()
        cost, packed = FunctionCost(quadratic_ms, tokens), DynamicConfig(layouts=("packed",))
        plans = plan_iteration(lengths, cost, REPLICAS, batch=packed)
        assert {m.layout for plan in plans for m in plan.microbatches} == {Layout.PACKED}
        best_ms = least_ms(lengths, 2, packed_ms)
        ratios.append(plans[0].prediction.iteration_ms / best_ms)
    assert 1 - 1e-9 <= min(ratios) <= 1 + 1e-9
    assert max(ratios) < 1.06  # no room to exchange samples one by one
    assert np.mean(ratios) < 1.02


def test_a_function_of_tokens_is_one_of_their_product() -> None:
    lengths = [5, 90, 33, 61, 12]
    by_tokens = FunctionCost.of_tokens(lambda n: 1 + 0.1 * n, lambda n: n)
    by_rows = FunctionCost(lambda n, m: 1 + 0.1 * n * m, lambda n, m: n * m)
    assert plan_iteration(lengths, by_tokens, REPLICAS) == plan_iteration(
        lengths, by_rows, REPLICAS
    )
    free = FunctionCost.of_tokens(lambda n: 1 + 0.1 * n)
    (plan,) = plan_iteration([8] * 50, free, Cluster(device_memory_bytes=1))
    assert [m.n_rows for m in plan.microbatches] == [50]


def test_stages_share_time_and_memory_and_the_width_is_sent() -> None:
    cost = FunctionCost(quadratic_ms, tokens, (0.25, 0.75), hidden_size=10)
    slow = Link(latency_ms=0, bytes_per_ms=320)
    plans = plan_iteration([8], cost, Cluster(n_stages=2, device_memory_bytes=99, link=slow))
    check_plans(plans)
    assert [plan.memory.stored for plan in plans] == [(2,), (6,)]
    (first, *_), (second, *_) = (plan.prediction.passes_ms for plan in plans)
    forward_ms = quadratic_ms(1, 8) / 3
    assert first == pytest.approx((0, 0.25 * forward_ms))
    assert second[0] == pytest.approx(first[1] + 1)  # 8 tokens of 10 numbers of 4 bytes
    assert second[1] - second[0] == pytest.approx(0.75 * forward_ms)
    assert plans[1].received_shape(0, Payload.ACTIVATION) == (1, 8, 10)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda _n, _m: 0.0, r"pass_ms\(1, 16\) of .* 0.0; return a number from 1e-100 to 1e\+100"),
        (lambda _n, _m: 1e-101, r"pass_ms\(1, 16\) of the cost function is 1e-101; return"),
        (lambda _n, _m: 1e101, r"pass_ms\(1, 16\) of the cost function is 1e\+101; return"),
        (
            lambda _n, _m: 10**400,
            r"pass_ms\(1, 16\) of the cost function is a number of hundreds of digits",
        ),
        (lambda _n, _m: math.nan, r"pass_ms\(1, 16\) of the cost function is nan"),
        (lambda _n, _m: "fast", r"pass_ms\(1, 16\) of the cost function is 'fast'"),
        (lambda _n, _m: None, r"pass_ms\(1, 16\) of the cost function is None"),
        (
            lambda n, m: n + 100 / m,
            r"pass_ms\(1, 24\) .* is 5.16667, less than pass_ms\(1, 16\), which is 7.25",
        ),
        (
            lambda n, m: m + 1 / n,
            r"pass_ms\(2, 24\) .* is 24.5, less than pass_ms\(1, 24\), which is 25",
        ),
        (lambda _n, _m: math.inf, r"sample 1 .* lies outside of what the cost model knows"),
    ],
)
def test_a_function_that_is_no_cost_is_refused(
    function: Callable[[float, float], float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        plan_iteration([16, 20], FunctionCost(function), REPLICAS)


def test_costs_may_not_fall_with_rows_of_another_length_between() -> None:
    n_rows, row_tokens = np.array([(1, 16), (1, 24), (2, 16), (2, 24)]).T
    with pytest.raises(
        InputError, match=r"pass_ms\(2, 16\) .* is 16.5, less than pass_ms\(1, 16\), which is 17"
    ):
        cost = FunctionCost(lambda n, m: m + 1 / n).cost_model()
        cost.stage_costs(decoder_shapes(n_rows, row_tokens))


def test_negative_memory_is_refused_and_too_much_of_it_names_the_sample() -> None:
    with pytest.raises(InputError, match=r"kept_bytes\(1, 8\) .* is -1; return a number from 0 "):
        plan_iteration([5, 5], FunctionCost(quadratic_ms, lambda _n, _m: -1), REPLICAS)
    with pytest.raises(InputError, match=r"sample 1 .* needs 168 bytes on stage 0"):
        plan_iteration([5, 161], FunctionCost(quadratic_ms, tokens), REPLICAS)


def test_what_does_not_go_with_functions_is_refused() -> None:
    cost = FunctionCost(quadratic_ms)
    with pytest.raises(InputError, match=r"model is a FunctionCost, whose .* leave them out"):
        plan_iteration([5], cost, REPLICAS, AnalyticConfig())
    with pytest.raises(InputError, match="model is a FunctionCost"):
        plan_iteration([5], cost, REPLICAS, placement=Placement((1,)))
    with pytest.raises(InputError, match=r"stage_shares has 1 stages, but cluster\.n_stages is 2"):
        plan_iteration([5], cost, Cluster(n_stages=2, device_memory_bytes=9))
    with pytest.raises(InputError, match=r"stage_shares are \(0.5, 0.6\); .* with the sum 1"):
        FunctionCost(quadratic_ms, stage_shares=(0.5, 0.6))
    with pytest.raises(InputError, match=r"stage_shares are \(1.5, -0.5\); give every stage"):
        FunctionCost(quadratic_ms, stage_shares=(1.5, -0.5))
    with pytest.raises(InputError, match=r"stage_shares are \(1, 1e-101\); .* at least 1e-100"):
        FunctionCost(quadratic_ms, stage_shares=(1, 1e-101))
    with pytest.raises(InputError, match="hidden_size is 0, but must be at least 1"):
        FunctionCost(quadratic_ms, hidden_size=0)


@given(
    lengths=st.lists(st.integers(1, 1000), min_size=2, max_size=12),
    exponents=st.lists(st.floats(-110, 110), min_size=2, max_size=2).map(sorted),
    share_exponents=st.lists(st.floats(-110, 0), min_size=1, max_size=4),
    kept=st.floats(0, 1e308),
)
def test_costs_are_planned_or_refused(
    lengths: list[int], exponents: list[float], share_exponents: list[float], kept: float
) -> None:
    small, large = (10**exponent for exponent in exponents)
    shares = [10**exponent for exponent in share_exponents]
    try:
        cost = FunctionCost(
            lambda n, m: n * (small if m < 500 else large),
            lambda n, _m: n * kept,
            tuple(share / sum(shares) for share in shares),
        )
        plans = plan_iteration(
            lengths, cost, Cluster(n_stages=len(shares), device_memory_bytes=2**40), effort=2000
        )
    except InputError:
        return
    assert 0 < plans[0].prediction.iteration_ms < math.inf

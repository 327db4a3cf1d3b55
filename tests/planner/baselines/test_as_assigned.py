from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import LinearCost

from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.baselines.as_assigned import AsAssigned
from dynapipe_hpc.planner.baselines.packed.packed_next_fit import PackedNextFit
from dynapipe_hpc.planner.choose.choice import Infeasible
from dynapipe_hpc.planner.schedule.adaptive import adaptive
from dynapipe_hpc.planner.schedule.one_f_one_b import one_f_one_b

SAMPLES = samples_of([40, 16, 80])
RULE = PackedNextFit(40)  # in turns: 40 and 80 to the first replica, 16 to the second


def test_replicas_and_order_are_those_of_the_rule() -> None:
    cluster = Cluster(n_replicas=2, n_stages=2, device_memory_bytes=10**9)
    best = AsAssigned(RULE, [one_f_one_b], LinearCost(), cluster).choose(SAMPLES).best
    assert best.way == "packed next fit, 40 tokens"
    found = [[m.row_tokens for m in pipeline.microbatches] for pipeline in best.pipelines]
    assert found == [[40, 80], [16]]
    assert {pipeline.rule for pipeline in best.pipelines} == {one_f_one_b}


def test_every_schedule_rule_is_tried() -> None:
    # 1F1B keeps both micro-batches on the first stage, which has room for one of them.
    cluster = Cluster(n_replicas=2, n_stages=2, device_memory_bytes=3 * 80)
    (tried,) = AsAssigned(RULE, [one_f_one_b], LinearCost(), cluster).choose(SAMPLES).tried
    assert isinstance(tried, Infeasible)
    assert tried.reason.startswith("1F1B needs")
    both = AsAssigned(RULE, [one_f_one_b, adaptive], LinearCost(), cluster).choose(SAMPLES).best
    assert [pipeline.rule for pipeline in both.pipelines] == [adaptive, one_f_one_b]

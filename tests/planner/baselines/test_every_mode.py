"""One mode for all micro-batches of an iteration, and one for each."""

from collections.abc import Sequence

from tests.examples.length_samples import samples_of
from tests.examples.linear_cost import linear_cost

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.config import DynamicConfig, RecomputeChoice
from dynapipe_hpc.planner.choose.choice import Choice
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.from_config import RULES, dynamic_chooser
from dynapipe_hpc.planner.search.config import SearchConfig

LENGTHS = [96, 40, 40, 8, 8, 8]


def chooser_of(choice: RecomputeChoice, memory_bytes: int, effort: int = 0) -> Chooser:
    cost = linear_cost(recomputes=True)  # a token keeps 2 bytes, and half a byte if recomputed
    cluster = Cluster(n_stages=2, device_memory_bytes=memory_bytes)
    batch = DynamicConfig(recompute_choice=choice)
    return dynamic_chooser(
        batch, SearchConfig(effort=effort), [RULES["cyclic"]], cost=cost, cluster=cluster
    )


def choose(choice: RecomputeChoice, memory_bytes: int, lengths: Sequence[int] = LENGTHS) -> Choice:
    return chooser_of(choice, memory_bytes).choose(samples_of(lengths))


def modes_of(choice: Choice) -> set[Recompute]:
    return {m.recompute for pipeline in choice.pipelines for m in pipeline.microbatches}


def test_a_sample_that_has_to_recompute_makes_all_others_do_so_too() -> None:
    scarce_bytes = 3 * 96 - 1  # the longest sample needs a byte more without recomputation
    each, all_alike = (choose(c, scarce_bytes) for c in ("per_microbatch", "per_iteration"))
    assert modes_of(each) == {Recompute.NONE, Recompute.FULL}
    assert modes_of(all_alike) == {Recompute.FULL}
    assert each.best.makespan_ms < all_alike.best.makespan_ms


def test_candidates_name_their_mode_and_the_first_feasible_is_the_last_tried() -> None:
    tried = [c.way for c in choose("per_iteration", 10**6).candidates]
    assert any(way.endswith("recompute none") for way in tried)
    assert any(way.endswith("recompute full") for way in tried)
    first = [c.way for c in choose("first_feasible", 10**6).candidates]
    assert first == [way for way in tried if way.endswith("recompute none")]


def test_the_search_keeps_to_the_mode() -> None:
    chooser = chooser_of("per_iteration", 3 * 96 - 1, effort=2_000)
    assert modes_of(chooser.choose(samples_of(LENGTHS))) == {Recompute.FULL}

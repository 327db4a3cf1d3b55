"""Explanation of an iteration's time: its busiest rank, and its longest micro-batches."""

from collections.abc import Iterator, Sequence

from dynapipe_hpc.data.microbatch import tokens_held
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.timeline import microbatch_times_ms, planned_bars

N_SHOWN = 3


def what_sets_the_time(plans: Sequence[RankPlan], samples: Sequence[Sample]) -> Iterator[str]:
    """The busiest rank, and the micro-batches that take most, with the sample that is longest.

    Args:
        plans: Plans of all ranks for one iteration.
        samples: Global batch.
    """
    until_ms = plans[0].prediction.iteration_ms
    busy_ms = {
        plan.rank: sum(bar.end_ms - bar.start_ms for bar in planned_bars(plan)) for plan in plans
    }
    taken_ms = microbatch_times_ms(plans)
    rank = max(busy_ms, key=busy_ms.__getitem__)
    most_ms = busy_ms[rank]
    yield (
        f"busiest: rank {rank}, {most_ms:,.1f} of {until_ms:,.1f} ms "
        f"({100 * most_ms / until_ms:.0f} %); no order of these passes ends sooner"
    )
    length_of = {sample.sample_id: sample.tokens for sample in samples}
    of_replica = {plan.replica: plan.microbatches for plan in plans if plan.stage == 0}
    total_ms = sum(taken_ms.values())
    yield "longest micro-batches: time of all passes | share | samples | the longest of them"
    for key in sorted(taken_ms, key=taken_ms.__getitem__, reverse=True)[:N_SHOWN]:
        (replica, index), its_ms = key, taken_ms[key]
        microbatch = of_replica[replica][index]
        ids = microbatch.sample_ids
        held = {i: len(tokens_held(microbatch, i, length_of[i])) for i in ids}
        longest = max(held, key=held.__getitem__)
        of_all = f" of {length_of[longest]:,}" if held[longest] < length_of[longest] else ""
        yield (
            f"  replica {replica}, micro-batch {index}: {its_ms:,.1f} ms | "
            f"{100 * its_ms / total_ms:.1f} % | {len(ids)} | sample {longest} "
            f"({held[longest]:,}{of_all} tokens)"
        )

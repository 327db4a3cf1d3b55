from dataclasses import replace

from tests.examples.example_runs import example_plans

from dynapipe_hpc.data.errors import MAX_MESSAGE_CHARACTERS
from dynapipe_hpc.experiment.watch.rank_status import (
    Position,
    RankStatus,
    status_of,
    suspects_of,
    table_of,
)
from dynapipe_hpc.plan.cluster import Cluster

CLUSTER = Cluster(n_stages=2, n_shards=2, device_memory_bytes=1)


def at(rank: int, index: int, for_s: float = 1.0, process: str = "runs") -> RankStatus:
    """A rank at an instruction of the example's plans, which two shards of a stage share."""
    position = Position()
    position.start_plan(5, example_plans(5)[CLUSTER.plan_of(rank)])
    position.reach(index)
    return status_of(rank, "n1", process, for_s=for_s, position=position, cluster=CLUSTER)


def test_behind_the_last_instruction_a_rank_waits_for_its_device() -> None:
    assert at(0, 9).place == "iteration 5, waits for its device"
    assert not at(0, 9).waits


def test_the_suspect_is_stopped_or_does_not_wait_or_has_been_there_for_longest() -> None:
    waiting = [at(0, 5, 9.0), at(2, 2, 8.0), at(3, 2, 10.0)]
    assert suspects_of(waiting)[0].rank == 3
    assert suspects_of([*waiting, at(1, 1, 7.0)])[0].rank == 1
    assert suspects_of([*waiting, at(1, 5, 1.0, "stopped")])[0].rank == 1


def test_the_table_reads_like_this() -> None:
    ranks = [at(2, 2, 31.4), at(1, 1, 9.0, "stopped")]
    ranks.append(RankStatus(3, "n22", "runs", 3.0, "iteration 6, compares plans", waits=True))
    of = "micro-batch 0 of 3 x 16 tokens"
    assert table_of(suspects_of(ranks), 4).splitlines() == [
        "rank  host  process  for [s]  at",
        f"1     n1    stopped  9        iteration 5, instruction 1 (Forward F0), {of}",
        "2     n1    runs     31       iteration 5, instruction 2 (WaitReceive a0<!), "
        f"{of}, peer 0",
        "3     n22   runs     3        iteration 6, compares plans",
        "no answer from ranks 0",
    ]


def test_of_many_ranks_those_that_probably_block_others_are_shown() -> None:
    ranks = [replace(at(1, 5), rank=rank) for rank in range(4000)]
    ranks[77] = replace(ranks[77], process="gone")
    ranks[1234] = replace(ranks[1234], waits=False)
    lines = table_of(suspects_of(ranks), 4096).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["rank", "77", "1234", "0"]
    assert lines[9] == "3,992 further ranks: see dynapipe-hpc explain"
    assert lines[10].startswith("no answer from ranks 4000, 4001, ")
    assert lines[10].endswith("4015, ... (96)")
    assert len("\n".join(lines)) < MAX_MESSAGE_CHARACTERS - 300

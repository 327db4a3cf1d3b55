from dataclasses import replace

from tests.examples.example_runs import example_plans

from dynapipe_hpc.data.errors import MAX_MESSAGE_CHARACTERS
from dynapipe_hpc.experiment.watch.rank_status import (
    HEAD_BYTES,
    Position,
    RankStatus,
    suspect_of,
    table_of,
    whereabouts_of,
)
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans

CLUSTER = Cluster(n_stages=2, n_shards=2, device_memory_bytes=1)


def status_of(rank: int, index: int, *, for_s: float = 1.0, process: str = "runs") -> RankStatus:
    """A rank at an instruction of the example's plans, which two shards of a stage share."""
    position = Position(memoryview(bytearray(HEAD_BYTES + 10_000)))
    position.start_plan(5, encode_plans(example_plans(5))[CLUSTER.plan_of(rank)])
    position.reach(index)
    return whereabouts_of(rank, "n1", process, for_s=for_s, position=position, cluster=CLUSTER)


def test_behind_the_last_instruction_a_rank_waits_for_its_device() -> None:
    assert status_of(0, 9).doing == "waits for its device"
    assert not status_of(0, 9).waits


def test_the_suspect_is_stopped_or_does_not_wait_or_has_been_there_for_longest() -> None:
    waiting = [status_of(0, 5, for_s=9.0), status_of(2, 2, for_s=8.0), status_of(3, 2, for_s=10.0)]
    assert suspect_of(waiting).rank == 3
    assert suspect_of([*waiting, status_of(1, 1, for_s=7.0)]).rank == 1
    assert suspect_of([*waiting, status_of(1, 5, for_s=1.0, process="stopped")]).rank == 1


def test_the_table_reads_like_this() -> None:
    ranks = [replace(status_of(2, 2), for_s=31.4), status_of(1, 1, process="stopped", for_s=9.0)]
    ranks.append(RankStatus(3, "n22", "runs", 3.0, 6, "compares plans", "", "", waits=True))
    assert table_of(ranks, 4).splitlines() == [
        "rank  host  process  for [s]  iteration  at                                "
        "micro-batch         peer",
        "1     n1    stopped  9        5          instruction 1 (Forward F0)        "
        "0 of 3 x 16 tokens",
        "2     n1    runs     31       5          instruction 2 (WaitReceive a0<!)  "
        "0 of 3 x 16 tokens  0",
        "3     n22   runs     3        6          compares plans",
        "no answer from ranks 0",
    ]


def test_of_many_ranks_those_that_probably_block_others_are_shown() -> None:
    ranks = [replace(status_of(1, 5), rank=rank) for rank in range(4000)]
    ranks[77] = replace(ranks[77], process="gone")
    ranks[1234] = replace(ranks[1234], waits=False)
    lines = table_of(ranks, 4096).splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["rank", "77", "1234", "0"]
    assert lines[11] == "3,990 further ranks: see dynapipe-hpc explain"
    assert lines[12].startswith("no answer from ranks 4000, 4001, ")
    assert lines[12].endswith("4015, ... (96)")
    assert len("\n".join(lines)) < MAX_MESSAGE_CHARACTERS - 300

from dataclasses import replace

from tests.examples.example_runs import example_plans

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


COMPARES = "compares plans with all ranks"


def compares(rank: int) -> RankStatus:
    """A rank that waits for all others, one of four on its host."""
    host = f"n{rank // 4 + 8}"
    return RankStatus(rank, host, "runs", 3.0, 6, COMPARES, COMPARES, "", "", waits=True)


def executes(rank: int, index: int, name: str, peer: int | str = "") -> RankStatus:
    """A rank at an instruction, one of four on its host."""
    return RankStatus(
        rank=rank,
        host=f"n{rank // 4 + 8:04}",
        process="runs",
        for_s=31.4 + rank % 2,
        iteration=5,
        doing=f"instruction {index} ({name} x{index})",
        action=name,
        microbatch=f"{index} of 3 x 16 tokens",
        peer=f"{peer}",
        waits=name.startswith("Wait"),
    )


def test_the_table_reads_like_this() -> None:
    stopped = replace(executes(0, 1, "Forward"), process="stopped")
    ranks = [executes(1, 5, "WaitReceive", 3), stopped, compares(3)]
    assert table_of(ranks, 4).splitlines() == [
        "ranks  hosts  process  for [s]  iteration  at                              "
        "micro-batch         peers",
        "0      n0008  stopped  31       5          instruction 1 (Forward x1)      "
        "1 of 3 x 16 tokens",
        "1      n0008  runs     32       5          instruction 5 (WaitReceive x5)  "
        "5 of 3 x 16 tokens  3",
        "3      n8     runs     3        6          compares plans with all ranks",
        "no answer from ranks 2",
    ]


def test_ranks_at_the_same_place_share_a_line() -> None:
    ranks = [compares(rank) for rank in range(16) if rank != 9]
    ranks += [executes(rank, 2, "WaitSend", rank + 4) for rank in range(16, 21)]
    ranks.append(replace(executes(21, 2, "WaitSend", 25), microbatch="2 of 1 x 48 tokens"))
    assert [" ".join(line.split()) for line in table_of(ranks, 24).splitlines()[1:]] == [
        "0-8,10-15 n8,n9,... (4) runs 3 6 compares plans with all ranks",
        "16-20 n0012,n0013 runs 31-32 5 instruction 2 (WaitSend x2) 2 of 3 x 16 tokens 20-24",
        "21 n0013 runs 32 5 instruction 2 (WaitSend x2) 2 of 1 x 48 tokens 25",
        "no answer from ranks 9,22-23",
    ]


def test_a_few_lines_tell_of_4096_ranks() -> None:
    """Every replica waits for something else; four ranks compute, and one of them is stopped."""
    waiting = [
        executes(rank, rank // 8, "WaitReceive" if rank % 8 else "WaitSend")
        for rank in range(4000)
        if rank not in (900, 901, 902, 1234)
    ]
    busy = [executes(rank, rank, "Backward") for rank in (900, 901, 902)]
    stopped = replace(executes(1234, 7, "WaitReceive"), process="stopped")
    lines = table_of([*waiting, *busy, stopped], 4096).splitlines()
    assert [line.split()[0] for line in lines] == [
        *("ranks", "0,8,16,24,...", "1-7,9-15,17-23,25-31,...", "900", "901", "902", "1234", "no")
    ]
    assert lines[1].split()[1] == "(500)"
    assert lines[2].split()[1:] == [
        "(3,496)",
        "n0008,n0009,...",
        "(1,000)",
        "runs",
        "31-32",
        "5",
        "WaitReceive",
        "several",
    ]
    assert lines[-1] == "no answer from ranks 4000-4095"
    assert max(map(len, lines)) < 160


def test_where_all_ranks_differ_those_that_probably_block_others_are_shown() -> None:
    ranks = [executes(rank, rank, "Backward") for rank in range(1000)]
    ranks[77] = replace(ranks[77], process="gone")
    lines = table_of(ranks, 1000).splitlines()
    assert len(lines) == 1 + 32 + 1
    assert any(line.startswith("77 ") for line in lines)
    assert lines[-1].startswith("at 968 further places: ranks 0,2,4,6,... (968)")

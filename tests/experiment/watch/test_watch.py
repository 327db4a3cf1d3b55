"""Positions of ranks, processes that do not move, and what is left of a hang."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.examples.example_runs import example_plans

from dynapipe_hpc.data.errors import MAX_MESSAGE_CHARACTERS
from dynapipe_hpc.experiment.watch.rank_status import (
    DeviceProgress,
    Phase,
    Position,
    RankStatus,
    Standing,
    describe_hangs,
    read_hangs,
    remove_hang,
    status_of,
    suspects_of,
    table_of,
    write_hang,
)
from dynapipe_hpc.plan.cluster import Cluster

CLUSTER = Cluster(n_stages=2, device_memory_bytes=1)
MAX_S = 5.0


class Device:
    """A device that has reached the moments up to a number."""

    def __init__(self) -> None:
        self.reached = -1

    def has_passed(self, moment: int) -> bool:
        return moment <= self.reached


def executing(iteration: int) -> Position:
    position = Position()
    position.start_plan(iteration, example_plans(iteration)[0])
    return position


def becomes(looked: Callable[[], Standing], expected: Standing) -> bool:
    end_s = time.monotonic() + MAX_S
    while looked() != expected and time.monotonic() < end_s:
        time.sleep(0.01)
    return looked() == expected


def test_the_first_end_that_has_not_happened_is_that_of_the_instruction_that_hangs() -> None:
    position, device = executing(5), Device()
    with DeviceProgress(position, device.has_passed) as progress:
        for index in range(8):
            progress.reach(index, 10 * index)
        assert position.look() == Standing(Phase.EXECUTES, 5, 7, 0)
        device.reached = 55  # past the start of instruction 5 and not its end
        assert becomes(position.look, Standing(Phase.EXECUTES, 5, 7, 5))
        found = status_of(0, "n1", "runs", for_s=9.0, position=position, cluster=CLUSTER)
        assert found.place == (
            "iteration 5, instruction 5 (WaitReceive g0<!), 7 launched, "
            "micro-batch 0 of 3 x 16 tokens, peer 1"
        )
        assert found.waits
        device.reached = 70
        assert becomes(position.look, Standing(Phase.EXECUTES, 5, 7, 7))


def test_a_device_that_fails_ends_the_looking_and_nothing_else() -> None:
    asked = threading.Event()

    def fails(_: int) -> bool:
        asked.set()
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    position = executing(0)
    with DeviceProgress(position, fails) as progress:
        progress.reach(0, 0)
        assert asked.wait(MAX_S)
        progress.reach(1, 1)
    assert position.look() == Standing(Phase.EXECUTES, 0, 1, 0)


RANK_STATUS_CLUSTER = Cluster(n_stages=2, n_shards=2, device_memory_bytes=1)


def at(rank: int, index: int, for_s: float = 1.0, process: str = "runs") -> RankStatus:
    """A rank at an instruction of the example's plans, which two shards of a stage share."""
    position = Position()
    position.start_plan(5, example_plans(5)[RANK_STATUS_CLUSTER.plan_of(rank)])
    position.reach(index)
    return status_of(
        rank, "n1", process, for_s=for_s, position=position, cluster=RANK_STATUS_CLUSTER
    )


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


OWN = RankStatus(2, "n1", "runs", 5.0, "iteration 7, starts", waits=False)
STOPPED = replace(OWN, rank=3, process="stopped", for_s=4.0)


def test_others_read_where_ranks_and_their_stopped_neighbours_are(tmp_path: Path) -> None:
    write_hang(tmp_path, [OWN, STOPPED])
    os.utime(tmp_path / "hang" / "rank-00002.json", (100.0, 100.0))
    expected = [replace(OWN, for_s=8.0), replace(STOPPED, for_s=7.0)]
    assert list(read_hangs(tmp_path, range(4), now_s=103.0)) == expected
    assert list(read_hangs(tmp_path, [0, 1, 3], now_s=103.0)) == []
    first, *stack = describe_hangs(tmp_path)
    assert first == "rank 2 on n1 at iteration 7, starts:"
    assert any("test_others_read" in line for line in stack)
    remove_hang(tmp_path, 2)
    assert list(describe_hangs(tmp_path)) == []


def test_what_is_damaged_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "hang").mkdir()
    for rank, text in enumerate(("{", '{"statuses": [{}]}', '{"statuses": [3]}', "[]", "")):
        (tmp_path / "hang" / f"rank-{rank:05d}.json").write_text(text)
    assert list(read_hangs(tmp_path, range(5), now_s=0.0)) == []
    assert list(describe_hangs(tmp_path)) == []

import os
from dataclasses import replace
from pathlib import Path

from dynapipe_hpc.experiment.watch.rank_status import (
    RankStatus,
    describe_hangs,
    read_hangs,
    remove_hang,
    write_hang,
)

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

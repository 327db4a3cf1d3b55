from tests.examples.example_runs import example_plans

from dynapipe_hpc.experiment.watch.position import HEAD_BYTES, Position
from dynapipe_hpc.experiment.watch.rank_status import RankStatus, suspect_of, whereabouts_of
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


def test_in_words_a_peer_is_numbered_as_the_job_does() -> None:
    assert status_of(1, 2).place == (
        "iteration 5, instruction 2 (StartSend a0>1), micro-batch 0 of 3 x 16 tokens, peer 3"
    )


def test_the_suspect_is_stopped_or_does_not_wait_or_has_been_there_for_longest() -> None:
    waiting = [status_of(0, 5, for_s=9.0), status_of(2, 2, for_s=8.0), status_of(3, 2, for_s=10.0)]
    assert suspect_of(waiting).rank == 3
    assert suspect_of([*waiting, status_of(1, 1, for_s=7.0)]).rank == 1
    assert suspect_of([*waiting, status_of(1, 5, for_s=1.0, process="stopped")]).rank == 1

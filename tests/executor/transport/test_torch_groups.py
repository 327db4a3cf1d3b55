import math
import os
import random
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from tests.examples.planned_iteration import planned_iteration
from tests.examples.training_case import SHAPE
from tests.examples.transports import gloo_ends
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.data.microbatch import PaddedRows
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.transport.torch_distributed import (
    TRANSFER_CTAS,
    Holders,
    TorchGroups,
    TorchTransport,
    close_groups,
    open_groups,
)
from dynapipe_hpc.experiment.rank.channels import connect_groups
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload, StartReceive, StartSend, WaitSend
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.training.counters import StageReport
from dynapipe_hpc.training.tied_copies import paired_stages, tied_weights

CPU = torch.device("cpu")
LARGE = Cluster(n_stages=16, n_replicas=8, n_shards=2, device_memory_bytes=1)
T5 = T5Shape(
    n_layers=24, hidden_size=16, n_heads=4, head_size=4, ffn_size=32, vocab_size=64, max_tokens=32
)
PLACEMENT = Placement.equal_shares(T5.n_all_layers, LARGE.n_stages)
HOLDERS = paired_stages(tied_weights(T5, PLACEMENT, LARGE.n_shards))


@dataclass(frozen=True)
class Operation:
    """One operation of a rank: on a communicator, with those ranks that must take part."""

    communicator: tuple[str, frozenset[int]]
    kind: str


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Operation] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func.namespace == "c10d":
            self.found.append(_operation(func.__name__.partition(".")[0], args))
        return func(*args, **(kwargs or {}))


def n_communicators(cluster: Cluster, holders: Holders, stage: int) -> int:
    """Number of communicators of the ranks of a stage: transfers, copies of weights, and sums."""
    neighbours = {stage - 1, stage + 1} & set(range(cluster.n_stages))
    pairs = {frozenset((first, other)) for first, *others in holders for other in others}
    peers = {peer for pair in pairs if stage in pair for peer in pair - {stage}}
    sizes = (cluster.n_replicas, cluster.n_shards, cluster.n_stages * cluster.n_shards)
    # Neighbours exchange copies through the communicator of gradients.
    return 2 * len(neighbours) + len(peers - neighbours) + sum(size > 1 for size in sizes)


def _operation(kind: str, args: Sequence[Any]) -> Operation:
    (group,) = (
        ProcessGroup.unbox(a) for a in args if isinstance(a, torch.ScriptObject) and _is_group(a)
    )
    ranks = distributed.get_process_group_ranks(group)
    if kind in ("send", "recv_"):
        ranks = [ranks[group.rank()], ranks[args[2]]]
    return Operation((group.group_name, frozenset(ranks)), kind)


def _is_group(script_object: Any) -> bool:
    return "ProcessGroup" in str(script_object._type())


@contextmanager
def groups_of(cluster: Cluster, rank: int) -> Iterator[TorchGroups]:
    groups = open_groups("fake", cluster, rank, FakeStore(), timeout_s=60)
    try:
        yield groups
    finally:
        close_groups()


def connected(cluster: Cluster, rank: int, holders: Sequence[tuple[int, ...]]) -> list[Operation]:
    """The operations with which a rank connects."""
    with groups_of(cluster, rank) as groups, Operations() as operations:
        connect_groups(groups, CPU, torch.float32, holders)
    found: list[Operation] = operations.found
    return found


@pytest.fixture(scope="module")
def of_ranks() -> list[list[Operation]]:
    """Calls by which all 256 ranks of a large job connect."""
    return [connected(LARGE, rank, HOLDERS) for rank in range(LARGE.n_ranks)]


def test_a_rank_has_at_most_eight_communicators(of_ranks: list[list[Operation]]) -> None:
    counts = [len({op.communicator for op in operations}) for operations in of_ranks]
    assert max(counts) <= 8
    expected = [n_communicators(LARGE, HOLDERS, LARGE.stage_of(r)) for r in range(256)]
    assert counts == expected


def test_neighbours_that_hold_a_weight_need_no_communicator_for_it() -> None:
    pair, line = (Cluster(n_stages=n, device_memory_bytes=1) for n in (2, 3))
    for cluster, holders in ((pair, [(0, 1)]), (line, [(0, 1, 2)])):
        for rank in range(cluster.n_ranks):
            found = {op.communicator for op in connected(cluster, rank, holders)}
            assert len(found) == n_communicators(cluster, holders, rank)


def n_rounds(of_ranks: Sequence[Sequence[Operation]]) -> int:
    """Rounds after which all transfers are over, if each waits for its other side and takes one."""
    left = [deque(op for op in ops if op.kind in ("send", "recv_")) for ops in of_ranks]
    n = 0
    while any(left):
        fronts = [ops[0].communicator if ops else None for ops in left]
        met = [c for c in fronts if c is not None and fronts.count(c) == 2]
        assert met, "ranks wait for each other"
        for rank, front in enumerate(fronts):
            if front in met:
                left[rank].popleft()
        n += 1
    return n


def test_pairs_connect_in_two_rounds_however_many_stages_there_are() -> None:
    for n_stages in (2, 3, 8, 16):
        cluster = Cluster(n_stages=n_stages, device_memory_bytes=1)
        of_ranks = [connected(cluster, rank, ()) for rank in range(n_stages)]
        assert n_rounds(of_ranks) == (2 if n_stages == 2 else 4)  # two directions each


def test_a_large_job_connects_without_waiting_in_a_circle(of_ranks: list[list[Operation]]) -> None:
    assert n_rounds(of_ranks) < 20


class NcclOptions:
    """Stand-in for `ProcessGroupNCCL.Options` where torch has no NCCL."""

    class Config:
        max_ctas = -1

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NcclOptions.Config()
        self._timeout = timedelta(0)


def test_transfers_take_few_multiprocessors_and_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    new_group, init = distributed.new_group, distributed.init_process_group

    def noted_group(ranks: list[int], pg_options: Any, **others: Any) -> Any:
        asked.append((len(ranks), pg_options))
        return new_group(ranks, **others)

    nccl = SimpleNamespace(Options=NcclOptions)
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", nccl, raising=False)
    monkeypatch.setattr(distributed, "new_group", noted_group)
    monkeypatch.setattr(distributed, "init_process_group", lambda _, **known: init("fake", **known))
    cluster = Cluster(n_stages=2, n_replicas=2, device_memory_bytes=1)
    groups = open_groups("nccl", cluster, 0, FakeStore(), timeout_s=600)
    close_groups()
    assert groups.transfers.keys() == set(Payload)
    transfers = [(n, options) for n, options in asked if options is not None]
    assert [n for n, _ in transfers] == [4, 4]
    for _, options in transfers:
        assert options.is_high_priority_stream
        assert 2 <= options.config.max_ctas == TRANSFER_CTAS <= 4
        assert options._timeout == timedelta(seconds=600)  # torch warns if it is another
    assert [n for n, options in asked if options is None] == [2, 2]


def test_torch_ends_no_process_before_this_packages_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", raising=False)
    open_groups("fake", Cluster(device_memory_bytes=1), 0, FakeStore(), timeout_s=3600)
    close_groups()
    assert int(os.environ["TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"]) > 3600


CLUSTER = Cluster(n_stages=2, device_memory_bytes=10**9)
N_PLANS = 100
NUMBER_BYTES = 4


def sending_stage(plan: RankPlan, transport: TorchTransport) -> Any:
    """Sends tensors of the right shape, and looks at what its transport holds at the end."""

    def sent(index: int, received: Tensor | None, **_: bool) -> Tensor | None:
        m = plan.microbatches[index]
        size = (m.n_rows, m.row_tokens, SHAPE.hidden_size)
        return None if received is not None else torch.full(size, float(index))

    def finish() -> StageReport:
        assert buffer_bytes(transport) == 0
        return StageReport(0.0, 0.0, 0.0, 0)

    stage = MagicMock(forward=sent, backward=sent, finish_iteration=finish)
    stage.step_optimizer.side_effect = lambda: setattr(stage, "held", buffer_bytes(transport))
    return stage


def buffer_bytes(transport: TorchTransport) -> int:
    buffers = (*transport._slots._held.values(), *transport._sent._held.values())
    return sum(each.nbytes for each in buffers)


def random_plans(seed: int) -> list[RankPlan]:
    draw = random.Random(seed)  # noqa: S311
    largest = draw.choice([8, 24, 160])
    microbatches = [
        PaddedRows(tuple(10 * i + r for r in range(draw.randint(1, 3))), draw.randint(1, largest))
        for i in range(draw.randint(1, 7))
    ]
    return planned_iteration([microbatches], CLUSTER, SHAPE, draw.choice(["1f1b", "adaptive"]))


def received_bytes(plan: RankPlan) -> int:
    """Each slot is as large as the largest tensor that the plan receives into it."""
    slots: dict[int, int] = defaultdict(int)
    for i in plan.instructions:
        if isinstance(i, StartReceive):
            size = NUMBER_BYTES * math.prod(plan.received_shape(i.microbatch, i.payload))
            slots[i.slot] = max(slots[i.slot], size)
    return sum(slots.values())


def sent_bytes(plan: RankPlan) -> int:
    """At most the largest tensor sent, for each of the sends that are under way together."""
    largest = n_most = n_now = 0
    for i in plan.instructions:
        if isinstance(i, StartSend):
            m = plan.microbatches[i.microbatch]
            size = NUMBER_BYTES * m.n_rows * m.row_tokens * SHAPE.hidden_size
            largest, n_now = max(largest, size), n_now + 1
            n_most = max(n_most, n_now)
        elif isinstance(i, WaitSend):
            n_now -= 1
    return n_most * largest


def execute(plans: Sequence[RankPlan], ends: Sequence[TorchTransport]) -> list[int]:
    """Bytes that each rank holds at the end of its plan."""
    stages = [sending_stage(plan, end) for plan, end in zip(plans, ends, strict=True)]
    with ThreadPoolExecutor(2) as ranks:
        for launched in ranks.map(launch_plan, plans, stages, ends):
            launched.finish()
    return [stage.held for stage in stages]


def test_buffers_of_a_hundred_plans_are_as_large_as_each_plan_says() -> None:
    ends = gloo_ends()
    for seed in range(N_PLANS):
        plans = random_plans(seed)
        for plan, held in zip(plans, execute(plans, ends), strict=True):
            assert received_bytes(plan) <= held <= received_bytes(plan) + sent_bytes(plan)
            assert any(isinstance(i, StartReceive) for i in plan.instructions)


def test_a_sent_tensor_may_change_at_once() -> None:
    low, high = gloo_ends()
    tensor = torch.ones(5)
    low.start_send(0, Payload.ACTIVATION, 1, tensor)
    tensor.zero_()
    high.start_receive(0, Payload.ACTIVATION, 0, (5,), slot=0)
    assert high.wait_receive(0, Payload.ACTIVATION).tolist() == [1] * 5
    low.wait_send(0, Payload.ACTIVATION)

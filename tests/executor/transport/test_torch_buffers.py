"""Buffers of `TorchTransport`: it holds those that each plan asks for."""

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from tests.examples.gloo_ends import gloo_ends
from tests.examples.planned_iteration import planned_iteration
from tests.examples.training_case import SHAPE
from torch import Tensor

from dynapipe_hpc.data.microbatch import MicroBatch, PaddedRows
from dynapipe_hpc.executor.run import launch_plan
from dynapipe_hpc.executor.transport.torch_distributed import TorchTransport
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.instruction import Payload, StartReceive, StartSend, WaitSend
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.training.counters import StageReport

CLUSTER = Cluster(n_stages=2, device_memory_bytes=10**9)
N_PLANS = 100
NUMBER_BYTES = 4


class SendingStage:
    """Sends tensors of the right shape, and looks at what its transport holds at the end."""

    def __init__(self, plan: RankPlan, transport: TorchTransport) -> None:
        self._plan, self._transport = plan, transport
        self.buffer_bytes = 0

    def load(self, index: int, microbatch: MicroBatch) -> None:
        pass

    def forward(
        self, index: int, activation: Tensor | None, *, split_backward: bool = False
    ) -> Tensor | None:
        assert not split_backward
        return None if activation is not None else self._made(index)

    def backward(self, index: int, gradient: Tensor | None) -> Tensor | None:
        return self._made(index) if gradient is None else None

    def backward_weight(self, index: int) -> None:
        raise AssertionError(f"backward {index} is whole")

    def expect_last_backward(self, index: int) -> None:
        pass

    def reduce_gradients(self) -> None:
        pass

    def step_optimizer(self) -> None:
        self.buffer_bytes = buffer_bytes(self._transport)

    def finish_iteration(self) -> StageReport:
        assert buffer_bytes(self._transport) == 0
        return StageReport(0.0, 0.0, 0.0, 0)

    def _made(self, index: int) -> Tensor:
        m = self._plan.microbatches[index]
        return torch.full((m.n_rows, m.row_tokens, SHAPE.hidden_size), float(index))


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
    stages = [SendingStage(plan, end) for plan, end in zip(plans, ends, strict=True)]
    with ThreadPoolExecutor(2) as ranks:
        for launched in ranks.map(launch_plan, plans, stages, ends):
            launched.finish()
    return [stage.buffer_bytes for stage in stages]


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

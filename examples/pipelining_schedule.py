"""Plans executed by `torch.distributed.pipelining`: its schedule, and micro-batches of any shape.

On the rank of each stage, in a process group of the ranks of one replica:

    rows = schedule_rows(plans)  # as torch writes schedules to files
    stage = PlannedStage(module, plans[rank], n_stages, device)
    losses = step(stage, rows, inputs, targets, loss_of)

torch gives every micro-batch the receive buffer of the first one; `PlannedStage` gives each its
own. The runtime that follows a given schedule has a private name in torch (2.13), so that another
version may need changes here. It sums gradients over micro-batches, as losses are sums.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from dynapipe_hpc.plan.instruction import (
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Payload,
    StartReceive,
    StartSend,
)
from dynapipe_hpc.plan.rank_plan import RankPlan


def schedule_rows(plans: Sequence[RankPlan]) -> list[list[str]]:
    """Actions of the stages of one replica, such as 0F1 or 1RECV_F0.

    What torch does by itself is left out: loading, waiting, adding gradients up, and the update.
    """
    return [
        [action for each in plan.instructions if (action := _action(plan.stage, each))]
        for plan in plans
    ]


def _action(stage: int, instruction: object) -> str:
    match instruction:
        case Forward(i):
            return f"{stage}F{i}"
        case Backward(i):
            return f"{stage}B{i}"
        case BackwardInput(i):
            return f"{stage}I{i}"
        case BackwardWeight(i):
            return f"{stage}W{i}"
        case StartSend(i, payload):
            return f"{stage}SEND_{_LETTER[payload]}{i}"
        case StartReceive(i, payload):
            return f"{stage}RECV_{_LETTER[payload]}{i}"
        case _:
            return ""


_LETTER = {Payload.ACTIVATION: "F", Payload.GRADIENT: "B"}


class PlannedStage(PipelineStage):
    """A stage whose micro-batches have the shapes of a plan.

    Args:
        module: The stage's part of the model.
        plan: Plan of the rank.
        n_stages: Number of stages.
        device: Device of the rank.
    """

    def __init__(
        self, module: nn.Module, plan: RankPlan, n_stages: int, device: torch.device
    ) -> None:
        super().__init__(module, plan.stage, n_stages, device)
        self._plan = plan

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[Any]:
        """Receives an activation into a buffer of its own shape."""
        self._renew(self.args_recv_info[fwd_chunk_id], fwd_chunk_id, Payload.ACTIVATION)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[Any]:
        """Receives a gradient into a buffer of its own shape."""
        self._renew(self.grad_recv_info[bwd_chunk_id], bwd_chunk_id, Payload.GRADIENT)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _renew(self, infos: Sequence[Any], microbatch: int, payload: Payload) -> None:
        for info in infos:
            if info.buffer is not None:
                shape = self._plan.received_shape(microbatch, payload)
                info.buffer = torch.empty(shape, dtype=info.buffer.dtype, device=self.device)


def step(
    stage: PlannedStage,
    rows: Sequence[Sequence[str]],
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """Forward and backward passes of all micro-batches, in the order of the schedule.

    Args:
        stage: Stage of this rank.
        rows: Actions of all stages, see `schedule_rows`.
        inputs: Input of every micro-batch, used on the first stage.
        targets: Targets of every micro-batch, used on the last stage.
        loss_of: Loss of outputs and targets; its sum over micro-batches is what is derived.

    Returns:
        The losses by micro-batch, on the last stage; elsewhere none.
    """
    runtime = _PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
        [stage], n_microbatches=len(inputs), loss_fn=loss_of, scale_grads=False
    )
    actions = {rank: [_Action.from_str(each) for each in row] for rank, row in enumerate(rows)}
    runtime._prepare_schedule_with_comms(actions, format="compute_comms")
    losses: list[Tensor] = []
    arguments = [(each,) if stage.is_first else () for each in inputs]
    given = list(targets) if stage.is_last else None
    stage.has_backward = True
    stage.clear_runtime_states()
    runtime._step_microbatches(arguments, None, given, losses, return_outputs=False)
    return losses

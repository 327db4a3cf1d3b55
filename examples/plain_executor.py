"""An executor of plans in plain torch: every rank in one process, each a generator.

    losses = execute(plans, stages, sequences, steps)

The executor makes no decisions. It follows the instructions of every rank from top to bottom, and
lets another rank continue where one waits for a tensor, or for the gradients of other replicas.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dynapipe_hpc import MicroBatch
from dynapipe_hpc.plan.instruction import (
    Backward,
    Forward,
    Load,
    Payload,
    ReduceGradients,
    StartReceive,
    StartSend,
    StepOptimizer,
    WaitReceive,
    WaitSend,
)
from dynapipe_hpc.plan.rank_plan import RankPlan

ACTIVATION, GRADIENT = Payload.ACTIVATION, Payload.GRADIENT
NO_TARGET = -100
Key = tuple[int, int, int, Payload]


class DecoderStage(nn.Module):
    """Some layers of a small decoder; the first stage embeds tokens, the last has the head.

    Padding is at the end of rows, where causal attention lets no token see it.
    """

    def __init__(
        self, n_layers: int, width: int, n_ids: int, *, is_first: bool, is_last: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_ids, width) if is_first else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 4 * width, dropout=0.0, batch_first=True)
            for _ in range(n_layers)
        )
        self.head = nn.Linear(width, n_ids) if is_last else None

    def forward(self, rows: Tensor) -> Tensor:
        """Token ids or activations in, activations or logits out."""
        hidden = rows if self.embedding is None else self.embedding(rows)
        n = hidden.shape[1]
        mask = torch.full((n, n), -torch.inf, dtype=hidden.dtype).triu(1)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return hidden if self.head is None else self.head(hidden)


@dataclass
class Wires:
    """What travels between ranks.

    Attributes:
        sent: Tensors under way, by sender, receiver, micro-batch and payload.
        to_reduce: Gradients of the replicas of a stage that are ready to be added up.
        n_replicas: Number of replicas.
    """

    n_replicas: int
    sent: dict[Key, Tensor] = field(default_factory=dict)
    to_reduce: dict[int, list[list[Tensor]]] = field(default_factory=dict)


def execute(
    plans: Sequence[RankPlan],
    stages: Sequence[nn.Module],
    sequences: Sequence[Tensor],
    steps: Sequence[Callable[[], object]],
) -> float:
    """Executes the plans of all ranks.

    Args:
        plans: Plans by rank, with padded micro-batches and whole backward passes.
        stages: Module of every rank; replicas of a stage begin with the same weights.
        sequences: Token ids of every sample.
        steps: Function that updates the weights of every rank by their gradients.

    Returns:
        The mean loss of all tokens but the first of each sample.
    """
    wires = Wires(n_replicas=1 + max(plan.replica for plan in plans))
    n_targets = sum(len(ids) - 1 for ids in sequences)
    losses: list[float] = []
    ranks = {
        plan.rank: _execute_rank(plan, stage, sequences, n_targets, step, wires, losses)
        for plan, stage, step in zip(plans, stages, steps, strict=True)
    }
    while ranks:
        moved = [next(rank, None) for rank in ranks.values()]
        ranks = {n: rank for (n, rank), at in zip(ranks.items(), moved, strict=True) if at}
        if all(at == "waits" for at in moved):
            raise RuntimeError(f"ranks {sorted(ranks)} wait for each other")
    return sum(losses)


def _execute_rank(
    plan: RankPlan,
    stage: nn.Module,
    sequences: Sequence[Tensor],
    n_targets: int,
    step: Callable[[], object],
    wires: Wires,
    losses: list[float],
) -> Iterator[str]:
    """Executes instructions; yields "waits" where another rank has to move on, else "moves"."""
    tokens: dict[int, tuple[Tensor, Tensor]] = {}
    inputs: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    results: dict[tuple[int, Payload], Tensor] = {}
    received: dict[tuple[int, Payload], Tensor] = {}
    expected: dict[tuple[int, Payload], Key] = {}
    for instruction in plan.instructions:
        match instruction:
            case Load(i):
                tokens[i] = _collate(plan.microbatches[i], sequences)
            case Forward(i):
                inputs[i] = tokens[i][0] if plan.stage == 0 else received.pop((i, ACTIVATION))
                outputs[i] = stage(inputs[i])
                results[i, ACTIVATION] = outputs[i].detach()
            case Backward(i):
                output = outputs.pop(i)
                if (gradient := received.pop((i, GRADIENT), None)) is None:
                    output = _loss(output, tokens[i][1]) / n_targets
                    losses.append(output.item())
                output.backward(gradient)  # type: ignore[no-untyped-call]
                entered = inputs.pop(i)
                if entered.grad is not None:
                    results[i, GRADIENT] = entered.grad
            case StartSend(i, payload, peer):
                wires.sent[plan.rank, peer, i, payload] = results.pop((i, payload))
            case StartReceive(i, payload, peer, _):
                expected[i, payload] = (peer, plan.rank, i, payload)
            case WaitReceive(i, payload):
                key = expected.pop((i, payload))
                while key not in wires.sent:
                    yield "waits"
                received[i, payload] = wires.sent.pop(key)
                if payload is ACTIVATION:
                    received[i, payload].requires_grad_()
            case WaitSend():
                pass  # what was sent stays in memory until it is received
            case ReduceGradients():
                yield from _add_up(stage, wires, plan.stage)
            case StepOptimizer():
                step()
            case _:
                raise NotImplementedError(f"{instruction}: plan without split backward passes")
        yield "moves"


def _collate(microbatch: MicroBatch, sequences: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Token ids and their targets, the ids that follow, each of shape (n_rows, row_tokens)."""
    shape = (microbatch.n_rows, microbatch.row_tokens)
    ids, targets = torch.zeros(shape, dtype=torch.long), torch.full(shape, NO_TARGET)
    for row, sample in enumerate(microbatch.sample_ids):
        sequence = sequences[sample]
        ids[row, : len(sequence)] = sequence
        targets[row, : len(sequence) - 1] = sequence[1:]
    return ids, targets


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=NO_TARGET, reduction="sum"
    )


def _add_up(stage: nn.Module, wires: Wires, number: int) -> Iterator[str]:
    """Adds the gradients of all replicas of a stage to each other, when all have come."""
    gradients = [parameter.grad for parameter in stage.parameters() if parameter.grad is not None]
    wires.to_reduce.setdefault(number, []).append([gradient.clone() for gradient in gradients])
    while len(wires.to_reduce[number]) < wires.n_replicas:
        yield "waits"
    for gradient, *others in zip(gradients, *wires.to_reduce[number], strict=True):
        gradient.copy_(torch.stack(others).sum(0))

"""One process of DistributedDataParallel, which compares gradients with those of a whole batch.

python -m tests.library.ddp_rank RANK N_REPLICAS FOLDER
"""

import functools
import os
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.library.small_gpt2 import (
    DATA,
    PER_STEP,
    Gradients,
    assert_same,
    gradients_of,
    model,
    samples_of,
    two_steps,
    whole_batch,
)
from tests.library.small_gpt2 import sampler as any_sampler
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from hf_sampler import padded_to_longest, step_loader
from planned_trainer import PlannedTrainer

sampler = functools.partial(any_sampler, seed=10)  # one process has fewer micro-batches


def plain_loop(rank: int, n_replicas: int) -> list[Gradients]:
    """Gradients of all steps, as the loop in the docstring of the sampler has them."""
    found = []
    trained = DistributedDataParallel(model())
    loader = step_loader(DATA, padded_to_longest, sampler(n_replicas=n_replicas, replica=rank))
    for step in loader:
        for number, batch in enumerate(step, start=1):
            weight = batch.pop("loss_weight")
            with nullcontext() if number == len(step) else trained.no_sync():
                (weight * trained(**batch).loss).backward()
        found.append(gradients_of(trained.module))
        trained.zero_grad()
    return found


def with_trainer(rank: int, n_replicas: int, folder: str) -> tuple[list[Gradients], list[float]]:
    """Gradients of all steps of a `PlannedTrainer`, and the losses that it logs."""
    found: list[Gradients] = []

    class Observer(transformers.TrainerCallback):  # type: ignore[misc] # its types are skipped
        def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            found.append(gradients_of(model))

    arguments = transformers.TrainingArguments(**two_steps(folder))
    assert (arguments.world_size, arguments.process_index) == (n_replicas, rank)
    planned = PlannedTrainer(
        model(),
        arguments,
        train_dataset=DATA,
        data_collator=padded_to_longest,
        sampler=sampler(n_replicas=n_replicas, replica=rank),
        callbacks=[Observer()],
    )
    planned.train()
    return found, [line["loss"] for line in planned.state.log_history if "loss" in line]


def main(rank: int, n_replicas: int, folder: Path) -> None:
    """Both ways, against every sample in a row of its own."""
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=n_replicas,
        timeout=timedelta(seconds=30),
    )
    ranks = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": n_replicas,
        "LOCAL_WORLD_SIZE": n_replicas,
    }
    os.environ |= {name: str(number) for name, number in ranks.items()}  # as torchrun sets them
    of_replicas = [list(sampler(n_replicas=n_replicas, replica=r)) for r in range(n_replicas)]
    steps = list(zip(*of_replicas, strict=True))
    assert any(len({len(of_replica) for of_replica in step}) > 1 for step in steps)
    together = [[i for each in step for i in samples_of(each)] for step in steps]
    assert all(len(set(indices)) == PER_STEP for indices in together)
    expected = [whole_batch(indices) for indices in together]
    for found, (_, gradients) in zip(plain_loop(rank, n_replicas), expected, strict=True):
        assert_same(found, gradients)
    of_trainer, logged = with_trainer(rank, n_replicas, str(folder / "trained"))
    for found, (_, gradients) in zip(of_trainer, expected, strict=True):
        assert_same(found, gradients, rtol=1e-7, atol=1e-11)  # the updates of 1e-12 are between
    if rank == 0:
        assert logged == pytest.approx([loss for loss, _ in expected], rel=1e-3)
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

"""Planned micro-batches for a plain torch loop: less padding, the same gradients.

Every step takes the samples that shuffling gives it. They are then divided into micro-batches that
finish soonest by a cost function, each with the weight that makes the weighted losses of all
micro-batches of a step add up to the mean loss over all tokens of the step:

    sampler = PlannedSampler(lengths, cost, samples_per_step=64)
    for step in step_loader(dataset, collate, sampler):
        for batch in step:
            weight = batch.pop("loss_weight")
            (weight * model(**batch).loss).backward()
        optimizer.step()
        optimizer.zero_grad()

`planned_trainer.py` does the same in the Trainer of Hugging Face.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from dynapipe_hpc import Cluster, DynamicConfig, FunctionCost, InputError, plan_iteration

Batch = dict[str, Any]
Collate = Callable[[list[Any]], Batch]


class Planned(NamedTuple):
    """A micro-batch of a step.

    Attributes:
        indices: Samples of the dataset.
        loss_weight: Share of the step's targets that it holds, times the number of replicas, as
            these average their gradients.
    """

    indices: tuple[int, ...]
    loss_weight: float


class PlannedSampler(Sampler[list[Planned]]):
    """Steps of an epoch, each as the micro-batches of one data-parallel replica.

    All replicas need the same arguments but `replica`; together their micro-batches hold every
    sample of a step once. What is left after the last whole step is dropped.

    Args:
        lengths: Tokens of every sample.
        cost: Time of a micro-batch, and the memory or tokens that it takes.
        samples_per_step: Samples of a step, over all replicas.
        limit: Limit of `cost.kept_bytes` per micro-batch.
        n_targets: Tokens of every sample that have a loss; by default all but the first.
        n_replicas: Number of replicas.
        replica: Number of this one.
        packed: Whether the samples of a micro-batch lie end to end in one row, as
            `attention_per_sample.py` needs them; otherwise each has a row, padded to the longest.
        seed: Seed of the order of samples.

    Raises:
        InputError: A sample has no target, there are too few samples for a step or too few in it
            for the replicas, or there is no such replica.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        cost: FunctionCost,
        samples_per_step: int,
        *,
        limit: int = 2**50,
        n_targets: Sequence[int] | None = None,
        n_replicas: int = 1,
        replica: int = 0,
        packed: bool = False,
        seed: int = 0,
    ) -> None:
        self._lengths = np.asarray(lengths)
        self._n_targets = self._lengths - 1 if n_targets is None else np.asarray(n_targets)
        if (without := np.flatnonzero(self._n_targets < 1)).size:
            raise InputError(
                f"sample {without[0]} has no token with a loss, so that a micro-batch of such "
                "samples would have no mean; leave it out"
            )
        if not 1 <= samples_per_step <= len(self._lengths):
            raise InputError(
                f"samples_per_step is {samples_per_step}, but there are {len(self._lengths)} "
                "samples; choose from 1 to as many"
            )
        if not 1 <= n_replicas <= samples_per_step:
            raise InputError(
                f"n_replicas is {n_replicas}, but samples_per_step is {samples_per_step}, and "
                "every replica needs a sample; choose from 1 to as many"
            )
        if not 0 <= replica < n_replicas:
            raise InputError(
                f"replica is {replica}, but there are {n_replicas}; choose from 0 to "
                f"{n_replicas - 1}"
            )
        self._cost = cost
        self._samples_per_step = samples_per_step
        self._cluster = Cluster(n_replicas=n_replicas, device_memory_bytes=limit)
        self._replica = replica
        self._batch = DynamicConfig(layouts=("packed",) if packed else ("padded",))
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch."""
        self._epoch = epoch

    def __len__(self) -> int:
        """Number of steps of an epoch."""
        return len(self._lengths) // self._samples_per_step

    def __iter__(self) -> Iterator[list[Planned]]:
        """The steps of the epoch, each planned when it is asked for."""
        order = np.random.default_rng((self._seed, self._epoch)).permutation(len(self._lengths))
        for step in range(len(self)):
            start = step * self._samples_per_step
            yield self.plan(order[start : start + self._samples_per_step])

    def plan(self, indices: "np.ndarray[Any, np.dtype[np.int64]]") -> list[Planned]:
        """Micro-batches of this replica for the samples of a step."""
        plans = plan_iteration(self._lengths[indices], self._cost, self._cluster, batch=self._batch)
        plan = plans[self._replica]
        of_step = self._n_targets[indices].sum() / self._cluster.n_replicas
        members = [indices[list(microbatch.sample_ids)] for microbatch in plan.microbatches]
        return [
            Planned(tuple(each.tolist()), float(self._n_targets[each].sum() / of_step))
            for each in members
        ]


class MicroBatches(Dataset[Batch]):
    """A dataset whose items are collated micro-batches, each with its `loss_weight`."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self._dataset = dataset
        self._collate = collate

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._dataset)

    def __getitem__(self, planned: Planned) -> Batch:
        """The micro-batch of these samples."""
        collated = self._collate([self._dataset[i] for i in planned.indices])
        return {**collated, "loss_weight": planned.loss_weight}


class StepLoader(DataLoader[list[Batch]]):
    """A loader of steps; see `step_loader`."""

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of an epoch, as a Trainer does before each."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr] # it is a PlannedSampler


def step_loader(
    dataset: Any, collate: Collate, sampler: PlannedSampler, n_workers: int = 0
) -> StepLoader:
    """A loader of steps; with workers, they collate while the model computes."""
    return StepLoader(
        MicroBatches(dataset, collate),  # type: ignore[arg-type] # a step is a list of its items
        batch_sampler=sampler,
        collate_fn=list,
        num_workers=n_workers,
    )


def padded_to_longest(samples: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Tensor]:
    """Input ids of samples in rows as long as the longest; padding is masked and has no loss."""
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    lengths = torch.tensor([len(row) for row in rows])
    is_token = torch.arange(int(lengths.max())) < lengths[:, None]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {
        "input_ids": ids,
        "attention_mask": is_token.long(),
        "labels": ids.masked_fill(~is_token, -100),
    }


def fitted_cost(measured_ms: Mapping[tuple[int, int], float]) -> FunctionCost:
    """The cost function that fits measured times best, relative to each; tokens are its memory.

    A launch, a time per row, per token, per pair of tokens, and more per pair where there are
    several rows, as attention with masked padding is slower; none is negative.

    Args:
        measured_ms: Time of both passes by number of rows and length of rows, five or more.
    """
    n, m = np.array(list(measured_ms), dtype=np.float64).T
    times = np.array(list(measured_ms.values()))
    pairs = n * m**2
    terms = np.stack([np.ones_like(n), n, n * m, pairs, (n > 1) * pairs], axis=1) / times[:, None]
    used = list(range(5))
    while True:
        found = np.linalg.lstsq(terms[:, used], np.ones(len(times)), rcond=None)[0]
        if found.min() >= 0:
            break
        del used[int(found.argmin())]
    factors: dict[int, float] = dict(zip(used, found.tolist(), strict=True))
    launch, row, token, pair, masked = (factors.get(term, 0.0) for term in range(5))

    def pass_ms(n_rows: float, row_tokens: float) -> float:
        of_pair = pair + masked * (n_rows > 1)
        return launch + n_rows * (row + row_tokens * (token + of_pair * row_tokens))

    return FunctionCost(pass_ms, lambda n_rows, row_tokens: n_rows * row_tokens)

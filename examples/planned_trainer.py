"""The Trainer of Hugging Face, with planned micro-batches.

    sampler = PlannedSampler(lengths, cost, samples_per_step=64)
    PlannedTrainer(model, arguments, train_dataset=dataset, data_collator=collate, sampler=sampler)

`gradient_accumulation_steps` stays 1: a step of the sampler is a step of the optimizer, however
many micro-batches it has. `per_device_train_batch_size` has no effect. Processes of torchrun are
replicas: `n_replicas=arguments.world_size, replica=arguments.process_index`.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Trainer

from hf_sampler import Batch, PlannedSampler, StepLoader, step_loader


class PlannedTrainer(Trainer):  # type: ignore[misc] # its types are not looked up
    """A Trainer whose steps are those of a sampler.

    Args:
        arguments: What a Trainer takes.
        sampler: Sampler over `train_dataset`.
        keywords: What a Trainer takes.
    """

    def __init__(self, *arguments: Any, sampler: PlannedSampler, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        if self.args.gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps is {self.args.gradient_accumulation_steps}; leave it "
                "at 1, as the sampler decides on the micro-batches of a step"
            )
        self._sampler = sampler

    def get_train_dataloader(self) -> StepLoader:
        """A loader of steps."""
        n_workers = self.args.dataloader_num_workers
        return step_loader(self.train_dataset, self.data_collator, self._sampler, n_workers)

    def training_step(
        self, model: torch.nn.Module, inputs: list[Batch], num_items_in_batch: Any = None
    ) -> Tensor:
        """Forward and backward passes of all micro-batches; replicas add up at the last."""
        del num_items_in_batch  # weights are exact already
        *others, last = inputs
        losses = []
        for each in others:
            with self.accelerator.no_sync(model):
                losses.append(super().training_step(model, each))
        losses.append(super().training_step(model, last))
        return torch.stack(losses).sum()

    def compute_loss(self, model: torch.nn.Module, inputs: Batch, *others: Any, **more: Any) -> Any:
        """The weighted loss of a micro-batch of a step; of an evaluation the loss."""
        weight = inputs.pop("loss_weight", None)
        loss = super().compute_loss(model, inputs, *others, **more)
        return loss if weight is None else loss * weight

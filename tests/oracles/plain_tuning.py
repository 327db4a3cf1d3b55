"""Tuning of a model of `transformers` by a plain loop of torch, one sample after the other."""

from collections.abc import Iterator
from typing import Any

import torch
from tests.jobs.tuning_files import N_STEPS
from tests.oracles.plain_run import PlainRun, Sample
from torch import Tensor


def plain_losses(model: Any, run: PlainRun) -> Iterator[float]:
    """Losses of training with the optimizer of torch, one sample after the other."""
    decaying: list[Tensor] = []
    rest: list[Tensor] = []
    for name, weight in model.named_parameters():
        (rest if any(n in name for n in ("bias", "norm", "ln_")) else decaying).append(weight)
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for run.n_done in range(N_STEPS):
        batch = run.batch()
        n_targets = sum(len(sample.targets) for sample in batch)
        losses = [sample_loss(model, run.start_id, each) for each in batch]
        loss = torch.stack(losses).sum() / n_targets
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        yield loss.item()


def sample_loss(model: Any, start: int, sample: Sample) -> Tensor:
    """The sum of the losses of all targets of a sample."""
    if model.config.is_encoder_decoder:
        decoded = [start, *sample.targets[:-1]]
        sides = torch.tensor([sample.inputs]), torch.tensor([decoded])
        logits = model(input_ids=sides[0], decoder_input_ids=sides[1]).logits[0]
    else:
        whole = [start, *sample.inputs, *sample.targets]
        logits = model(input_ids=torch.tensor([whole[:-1]])).logits[0, len(sample.inputs) :]
    labels = torch.tensor(sample.targets)
    return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

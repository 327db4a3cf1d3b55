"""Planned micro-batches train what whole batches would."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.examples.foreign_models import LONGEST, N_IDS, transformers

from dynapipe_hpc import FunctionCost, InputError
from hf_sampler import PlannedSampler, fitted_cost, padded_to_longest, step_loader

trainers = pytest.importorskip("planned_trainer")  # which needs transformers

N_SAMPLES, PER_STEP = 30, 12
LENGTHS = np.random.default_rng(5).integers(2, LONGEST + 1, N_SAMPLES).tolist()
DATA = [
    {"input_ids": np.random.default_rng(i).integers(3, N_IDS, length).tolist()}
    for i, length in enumerate(LENGTHS)
]
COST = FunctionCost(lambda n, m: 1 + 0.01 * n * m + 1e-4 * n * m * m, lambda n, m: n * m)
Gradients = dict[str, torch.Tensor]


def model() -> Any:
    torch.manual_seed(3)
    config = transformers.GPT2Config(
        vocab_size=N_IDS,
        n_positions=LONGEST,
        n_embd=16,
        n_layer=2,
        n_head=2,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    )
    made = transformers.GPT2LMHeadModel(config).double()
    made.loss_function = mean_loss  # in place of one in float32
    return made


def mean_loss(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def sampler(**options: Any) -> PlannedSampler:
    return PlannedSampler(LENGTHS, COST, PER_STEP, limit=200, **options)


def gradients_of(trained: Any) -> Gradients:
    return {name: each.grad.clone() for name, each in trained.named_parameters()}


def whole_batch(indices: list[int]) -> tuple[float, Gradients]:
    """Mean loss of all tokens of samples, each alone in its row, and its gradients."""
    trained = model()
    losses = []
    for i in indices:
        ids = torch.tensor(DATA[i]["input_ids"])
        logits = trained(input_ids=ids[None]).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none"))
    loss = torch.cat(losses).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), gradients_of(trained)


def assert_same(found: Gradients, expected: Gradients) -> None:
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-9, atol=1e-13)


def samples_of(step: list[Any]) -> list[int]:
    return [i for planned in step for i in planned.indices]


def test_weighted_losses_have_the_gradients_of_the_whole_batch() -> None:
    steps = sampler(seed=2)
    planned = list(steps)
    loaded = list(step_loader(DATA, padded_to_longest, steps))
    assert len(loaded) == len(planned) == len(steps) == 2
    for indices, step in zip(map(samples_of, planned), loaded, strict=True):
        assert len(step) > 2
        trained, total = model(), 0.0
        for batch in step:
            weight = batch.pop("loss_weight")
            loss = weight * trained(**batch).loss
            loss.backward()
            total += loss.item()
        expected_loss, expected = whole_batch(indices)
        assert total == pytest.approx(expected_loss, rel=1e-12)
        assert_same(gradients_of(trained), expected)


def test_the_mean_over_replicas_has_the_gradients_of_the_whole_batch() -> None:
    replicas = [sampler(n_replicas=3, replica=replica) for replica in range(3)]
    steps = [next(iter(replica)) for replica in replicas]
    loaders = [next(iter(step_loader(DATA, padded_to_longest, each))) for each in replicas]
    indices = [i for step in steps for i in samples_of(step)]
    assert len(set(indices)) == PER_STEP
    trained = model()
    for batch in (batch for loaded in loaders for batch in loaded):
        weight = batch.pop("loss_weight")
        (weight / 3 * trained(**batch).loss).backward()
    assert_same(gradients_of(trained), whole_batch(indices)[1])


def test_every_epoch_has_an_order_of_its_own_and_micro_batches_within_the_limit() -> None:
    steps = sampler()
    first, again = list(steps), list(steps)
    steps.set_epoch(1)
    assert first == again != list(steps)
    assert all(
        len(each.indices) * -(-max(LENGTHS[i] for i in each.indices) // 8) * 8 <= 200
        for step in first
        for each in step
    )


def test_samples_of_no_step_are_refused() -> None:
    with pytest.raises(InputError, match=r"sample 1 has no token with a loss, .* leave it out"):
        PlannedSampler([5, 1, 3], COST, 2)
    with pytest.raises(InputError, match="samples_per_step is 4, but there are 3 samples"):
        PlannedSampler([5, 2, 3], COST, 4)


def trainer(folder: Path, on_step: Callable[[Gradients], None], **settings: Any) -> Any:
    """A Trainer of two steps that hands over the gradients of each."""

    class Observer(transformers.TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            on_step(gradients_of(model))

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=1,
        max_grad_norm=0,
        learning_rate=1e-12,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **settings,
    )
    return trainers.PlannedTrainer(
        model(),
        arguments,
        train_dataset=DATA,
        eval_dataset=DATA[:2],
        data_collator=padded_to_longest,
        sampler=sampler(),
        callbacks=[Observer()],
    )


@pytest.mark.filterwarnings("default")  # of other people's package
def test_the_trainer_steps_with_the_gradients_of_whole_batches(tmp_path: Path) -> None:
    found: list[Gradients] = []
    planned = trainer(tmp_path, found.append)
    planned.train()
    expected = [whole_batch(samples_of(step)) for step in sampler()]
    assert len(found) == 2
    for gradients, (_, of_step) in zip(found, expected, strict=True):
        for name, gradient in of_step.items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-7, atol=1e-11)
    logged = [line["loss"] for line in planned.state.log_history if "loss" in line]
    assert logged == pytest.approx([loss for loss, _ in expected], rel=1e-3)
    assert planned.evaluate()["eval_loss"] == pytest.approx(planned.state.log_history[0]["loss"], 1)


def test_a_trainer_that_would_join_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps is 2; leave it at 1"):
        trainer(tmp_path, lambda _: None, gradient_accumulation_steps=2)


def test_a_fit_finds_the_costs_that_were_measured_and_none_below_zero() -> None:
    sizes = [(n, m) for n in (1, 2, 8) for m in (8, 64, 256)]
    exact = {(n, m): 3 + 0.5 * n + 0.1 * n * m + 0.002 * n * m * m for n, m in sizes}
    cost = fitted_cost(exact)
    assert cost.pass_ms(5, 100) == pytest.approx(3 + 2.5 + 50 + 100)
    assert cost.kept_bytes(5, 100) == 500
    falling = fitted_cost({(n, m): 0.1 * n * m - 0.1 for n, m in sizes})
    assert 0 < falling.pass_ms(1, 1) < falling.pass_ms(1, 2)
    assert falling.pass_ms(2, 64) == pytest.approx(0.2 * 64, rel=0.1)

"""Planned micro-batches train what whole batches would."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tests.library.small_gpt2 import (
    COST,
    DATA,
    LENGTHS,
    Gradients,
    assert_same,
    gradients_of,
    model,
    sampler,
    samples_of,
    two_steps,
    whole_batch,
)
from tests.library.two_processes import check_two_processes

from dynapipe_hpc.data.lengths_file import draw_lengths
from hf_sampler import Planned, PlannedSampler, fitted_cost, padded_to_longest, step_loader

pytest.importorskip("accelerate")  # without which `transformers` has no trainer
attention = pytest.importorskip("attention_per_sample")
trainers = pytest.importorskip("planned_trainer")  # which needs transformers


@pytest.mark.parametrize("packed", [False, True])
def test_replicas_need_equal_times_where_equal_numbers_of_samples_would_not(packed: bool) -> None:
    lengths = draw_lengths(320, 0).inputs.clip(2, 512)
    alone_ms = np.array([COST.pass_ms(1, length) for length in lengths])
    replicas = [
        PlannedSampler(
            lengths.tolist(), COST, 64, limit=1024, n_replicas=2, replica=replica, packed=packed
        )
        for replica in range(2)
    ]

    def time_ms(planned: Planned) -> float:
        of_samples = lengths[list(planned.indices)]
        if packed:
            return COST.pass_ms(0, 0) + sum(
                COST.pass_ms(1, m) - COST.pass_ms(0, 0) for m in of_samples
            )
        return COST.pass_ms(len(of_samples), of_samples.max())

    imbalances, of_equal_numbers = [], []
    for step in zip(*replicas, strict=True):
        times_ms = [sum(map(time_ms, of_replica)) for of_replica in step]
        imbalances.append(max(times_ms) / np.mean(times_ms))
        indices = sorted(i for of_replica in step for i in samples_of(of_replica))
        halves_ms = [alone_ms[indices[replica::2]].sum() for replica in range(2)]
        of_equal_numbers.append(max(halves_ms) / np.mean(halves_ms))
    assert max(imbalances) < 1.05 < np.mean(of_equal_numbers)


def test_samples_end_to_end_have_the_gradients_of_the_whole_batch() -> None:
    attention.register_attention_per_sample()
    trained = model()
    trained.set_attn_implementation("per_sample")
    collate = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    steps = sampler(packed=True)
    (first, loaded), *_ = zip(steps, step_loader(DATA, collate, steps), strict=True)
    assert 1 < len(loaded) < len(next(iter(sampler())))
    for batch in loaded:
        assert batch["input_ids"].shape[0] == 1 and batch["input_ids"].numel() <= 200
        weight = batch.pop("loss_weight")
        (weight * trained(**batch).loss).backward()
    assert_same(gradients_of(trained), whole_batch(samples_of(first))[1])
    with pytest.raises(ValueError, match="needs cu_seq_lens_q, where samples begin; collate with"):
        trained(**padded_to_longest(DATA[:2]))


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


def trainer(folder: Path, on_step: Callable[[Gradients], None], **settings: Any) -> Any:
    """A Trainer of two steps that hands over the gradients of each."""

    class Observer(transformers.TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
            on_step(gradients_of(model))

    arguments = transformers.TrainingArguments(**{**two_steps(str(folder)), **settings})
    return trainers.PlannedTrainer(
        model(),
        arguments,
        train_dataset=DATA,
        eval_dataset=DATA[:2],
        data_collator=padded_to_longest,
        sampler=sampler(),
        callbacks=[Observer()],
    )


def test_a_fit_finds_the_costs_that_were_measured_and_none_below_zero() -> None:
    sizes = [(n, m) for n in (1, 2, 8) for m in (8, 64, 256)]
    exact = {
        (n, m): 3 + 0.5 * n + 0.1 * n * m + (0.002 if n > 1 else 0.001) * n * m * m
        for n, m in sizes
    }
    cost = fitted_cost(exact)
    assert cost.pass_ms(5, 100) == pytest.approx(3 + 2.5 + 50 + 100)
    assert cost.pass_ms(1, 100) == pytest.approx(3 + 0.5 + 10 + 10)
    assert cost.kept_bytes(5, 100) == 500
    falling = fitted_cost({(n, m): 0.1 * n * m - 0.1 for n, m in sizes})
    assert 0 < falling.pass_ms(1, 1) < falling.pass_ms(1, 2)
    assert falling.pass_ms(2, 64) == pytest.approx(0.2 * 64, rel=0.1)


@pytest.mark.filterwarnings("default")  # of other people's package
def test_a_trainer_takes_another_order_in_every_epoch_and_resumes_within_one(
    tmp_path: Path,
) -> None:
    epochs = [list(sampler()), list(sampler())]
    again = sampler()
    again.set_epoch(1)
    epochs[1] = list(again)
    expected = [whole_batch(samples_of(step))[1] for epoch in epochs for step in epoch]
    found: list[Gradients] = []
    settings = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 1}
    trainer(tmp_path, found.append, **settings).train()
    assert len(found) == 4
    resumed: list[Gradients] = []
    trainer(tmp_path, resumed.append, **settings).train(str(tmp_path / "checkpoint-1"))
    assert len(resumed) == 3
    for gradients, of_step in zip(found + resumed, expected + expected[1:], strict=True):
        assert_same(gradients, of_step, rtol=1e-7, atol=1e-11)


@pytest.mark.slow
def test_processes_under_data_parallelism_have_the_gradients_of_whole_batches(
    tmp_path: Path,
) -> None:
    check_two_processes("tests.library.ddp_rank", tmp_path)

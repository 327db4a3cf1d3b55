"""How many real tokens per second does the Trainer of Hugging Face train, with whose batches?

    python benchmarks/hf_trainer.py [--longest 512|2048] [--json OUT.json] [--seeds 3]

A small GPT-2 on one CPU thread trains an epoch in steps of 64 samples, lengths as in instruction
data. The Trainer divides steps into batches of equal numbers of samples: in random order, with
`group_by_length`, and in random order with the samples of a batch end to end (`flattened`). The
others are those of `PlannedTrainer` of `examples/`: `planned` pads rows, `packed` lays samples end
to end; their cost functions are fitted to times of a few micro-batches. Each is measured with every
batch size, or limit of tokens, over a part of an epoch, and then with its best. After the epoch, in
which all see the same samples, the loss on other samples says whether they learn the same from a
token.

Times are those of the processor, so that other processes disturb them little. For every method
they are divided into passes and the rest, beside what the fitted costs predict for the passes, and
what they say that the real tokens alone would take, without launches and padding (`floor`).
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers

from measured import median_ms, write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from attention_per_sample import register_attention_per_sample
from dynapipe_hpc import FunctionCost
from hf_sampler import PlannedSampler, fitted_cost, padded_to_longest
from planned_trainer import PlannedTrainer

N_IDS, PER_STEP, N_STEPS = 1000, 64, 16
SCANNED_STEPS = 4
# Spread of lengths, whose median is 107, by the longest.
SPREADS = {512: 0.9, 2048: 1.2}
SIZES = (1, 2, 4, 8, 16)  # samples
LIMITS = (512, 1024, 2048, 4096)  # tokens of a micro-batch
FITTED = [(n, m) for n in (1, 8, 32) for m in (16, 64, 256)] + [(2, 512)]
MEDIANS = (
    *("tokens_per_s", "seconds", "passes_s", "floor_s", "padding", "microbatches"),
    *("predicted_s", "eval_loss"),
)
OF_LAYOUT = {False: "planned", True: "packed"}
Sample = dict[str, list[int]]


class Method(NamedTuple):
    """How samples get into micro-batches.

    Attributes:
        sizes: Batch sizes, or limits of tokens, among which the best is taken; a limit below the
            longest sample is raised to it.
        is_packed: Whether the samples of a micro-batch lie end to end.
        is_planned: Whether micro-batches are planned.
        sampling: Order of samples in the Trainer.
    """

    sizes: tuple[int, ...]
    is_packed: bool = False
    is_planned: bool = False
    sampling: str = "random"


METHODS = {
    "random": Method(SIZES),
    "grouped": Method(SIZES, sampling="group_by_length"),
    "flattened": Method(SIZES, is_packed=True),
    "planned": Method(LIMITS, is_planned=True),
    "packed": Method(LIMITS, is_packed=True, is_planned=True),
}


def samples(n: int, seed: int, longest: int) -> list[Sample]:
    """Sequences in which a token depends on the one before: one of eight, which a model learns."""
    random = np.random.default_rng((seed, n))
    followers = np.random.default_rng(0).integers(0, N_IDS, (N_IDS, 8))
    lengths = random.lognormal(np.log(107), SPREADS[longest], n).clip(8, longest).astype(int)
    made = []
    for length in lengths:
        ids = [int(random.integers(N_IDS))]
        for choice in random.integers(0, 8, length - 1):
            ids.append(int(followers[ids[-1], choice]))
        made.append({"input_ids": ids})
    return made


def model(seed: int, longest: int, method: Method) -> Any:
    """A GPT-2 of four layers of width 128."""
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=N_IDS,
        n_positions=longest,
        n_embd=128,
        n_layer=4,
        n_head=4,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    )
    made = transformers.GPT2LMHeadModel(config)
    if method.is_packed:
        made.set_attn_implementation("per_sample")
    return made


def collator(method: Method) -> Any:
    """What makes a micro-batch of samples."""
    if method.is_packed:
        return transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    return padded_to_longest


def measured_cost(longest: int, method: Method) -> FunctionCost:
    """Fitted to times of forward and backward passes of this model on this machine.

    Rows of padded micro-batches differ in length, but for those of one row: padding is masked, for
    which attention has slower kernels.
    """
    trained = model(0, longest, method)
    collate = collator(method)

    def both_ms(n_rows: int, row_tokens: int) -> float:
        lengths = [row_tokens - (not method.is_packed and i > 0) for i in range(n_rows)]
        batch = collate([{"input_ids": [5] * length} for length in lengths])

        def both() -> None:
            trained(**batch).loss.backward()

        return median_ms(both, 3, time.process_time)

    sizes = [*FITTED, (1, longest), (4, longest // 2)]
    return fitted_cost({size: both_ms(*size) for size in sizes})


class Clock(transformers.TrainerCallback):  # type: ignore[misc] # its types are not looked up
    """Time from the first step to the end of the last, and of the passes between them."""

    def __init__(self) -> None:
        self.begun_s = self.ended_s = self.passes_s = 0.0
        self.shapes: list[tuple[int, int]] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begun_s = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ended_s = time.process_time()

    def of_passes(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """The same, with its times added up."""

        def timed(trained: Any, inputs: Any, *others: Any) -> Any:
            begun_s = time.process_time()
            micro_batches = inputs if isinstance(inputs, list) else [inputs]
            self.shapes += [tuple(each["input_ids"].shape) for each in micro_batches]
            loss = training_step(trained, inputs, *others)
            self.passes_s += time.process_time() - begun_s
            return loss

        return timed


def train(
    method: Method, size: int, seed: int, n_steps: int, longest: int, cost: FunctionCost
) -> dict[str, Any]:
    """Trains an epoch; tokens per second, where time went, losses, and that on other samples."""
    data = samples(PER_STEP * n_steps, seed, longest)
    lengths = [len(sample["input_ids"]) for sample in data]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=1 if method.is_planned else size,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=1 if method.is_planned else PER_STEP // size,
            train_sampling_strategy=method.sampling,
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            seed=seed,
        )
        common = {
            "model": model(seed, longest, method),
            "args": arguments,
            "train_dataset": data,
            "eval_dataset": samples(64, 99, longest),
            "data_collator": collator(method),
            "callbacks": [clock],
        }
        if method.is_planned:
            limit = max(size, longest)
            steps = PlannedSampler(
                lengths, cost, PER_STEP, limit=limit, packed=method.is_packed, seed=seed
            )
            trainer: Any = PlannedTrainer(**common, sampler=steps)
        else:
            trainer = transformers.Trainer(**common)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.training_step = clock.of_passes(trainer.training_step)
        trainer.train()
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        loss = trainer.evaluate()["eval_loss"]
    return {
        "tokens_per_s": sum(lengths) / (clock.ended_s - clock.begun_s),
        "seconds": clock.ended_s - clock.begun_s,
        "passes_s": clock.passes_s,
        "floor_s": sum(cost.pass_ms(1, each) - cost.pass_ms(0, each) for each in lengths) / 1e3,
        "microbatches": len(clock.shapes),
        "padding": 1 - sum(lengths) / sum(n * m for n, m in clock.shapes),
        "losses": [round(float(each), 4) for each in losses],
        "eval_loss": float(loss),
    } | ({} if method.is_packed else {"predicted_s": predicted_s(clock.shapes, cost)})


def predicted_s(shapes: list[tuple[int, int]], cost: FunctionCost) -> float:
    """Time that padded micro-batches should take."""
    return sum(cost.pass_ms(n, m) for n, m in shapes) / 1e3


def median_of(runs: list[dict[str, Any]], key: str) -> float:
    """Median of a number over runs."""
    return statistics.median(float(run[key]) for run in runs)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--longest", type=int, choices=SPREADS, default=512)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    longest = arguments.longest
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    register_attention_per_sample()
    costs = {packed: measured_cost(longest, METHODS[name]) for packed, name in OF_LAYOUT.items()}

    def measured(name: str, size: int, seed: int, n_steps: int) -> dict[str, Any]:
        method = METHODS[name]
        return train(method, size, seed, n_steps, longest, costs[method.is_packed])

    by_size: dict[str, dict[str, float]] = {}
    for name, method in METHODS.items():
        of_name = by_size[name] = {}
        for size in method.sizes:
            of_name[str(size)] = measured(name, size, 0, SCANNED_STEPS)["tokens_per_s"]
            if of_name[str(size)] < 0.75 * max(of_name.values()):
                break  # speed has one peak, and large random batches take minutes
    best = {name: int(max(found, key=found.__getitem__)) for name, found in by_size.items()}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    for seed in range(arguments.seeds):  # one after the other, so that all see the same load
        for name, of_seeds in runs.items():
            of_seeds.append(measured(name, best[name], seed, N_STEPS))
    summary = {
        name: {key: median_of(of_name, key) for key in MEDIANS if key in of_name[0]}
        for name, of_name in runs.items()
    }
    for name, row in summary.items():
        sys.stdout.write(f"{name}, {best[name]}: {row['tokens_per_s']:,.0f} tokens/s")
        sys.stdout.write(f", {row['padding']:.1%} padding, loss {row['eval_loss']:.4f}")
        sys.stdout.write(f", {row['passes_s']:.1f} s in passes of {row['seconds']:.1f}")
        sys.stdout.write(f", floor {row['floor_s']:.1f}\n")
    better = max(summary[name]["tokens_per_s"] for name in ("random", "grouped"))
    ratios = {name: row["tokens_per_s"] / better for name, row in summary.items()}
    for name in ("flattened", "planned", "packed"):
        sys.stdout.write(f"{name}: {ratios[name]:.2f} times the better of random and grouped\n")
    if arguments.json:
        found = {"longest": longest, "tokens_per_s_by_size": by_size, "best_size": best}
        write_json(
            arguments.json, {**found, "medians": summary, "ratios_to_better": ratios, "runs": runs}
        )


if __name__ == "__main__":
    main()

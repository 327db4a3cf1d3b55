"""How many real tokens per second does the Trainer of Hugging Face train, with whose batches?

    python benchmarks/hf_trainer.py [--json OUT.json] [--seeds 3]

A small GPT-2 on one CPU thread trains an epoch in steps of 64 samples, lengths as in instruction
data. The Trainer divides steps into batches of equal numbers of samples: in random order, and with
`group_by_length`. Each is measured with every batch size over half of an epoch, and then with its
best. The third is `PlannedTrainer` of `examples/`, with a cost function fitted to times of a
few micro-batches. After the epoch, in which all see the same samples, the loss on other samples
says whether they learn the same from a token. The fastest of the micro-batches whose times are
fitted, which have no padding and do nothing but the two passes, shows what the machine can do.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from measured import median_ms, write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from dynapipe_hpc import FunctionCost
from hf_sampler import PlannedSampler, fitted_cost, padded_to_longest
from planned_trainer import PlannedTrainer

N_IDS, LONGEST, PER_STEP, N_STEPS = 1000, 512, 64, 16
SCANNED_STEPS = 8
SIZES = (1, 2, 4, 8, 16)
MOST_TOKENS = 16384
FITTED = [(1, 16), (1, 64), (1, 256), (1, 512), (8, 16), (8, 64), (8, 256), (32, 16), (32, 64)]
FITTED += [(32, 256), (64, 32), (64, 128)]
STRATEGIES = {"random": "random", "grouped": "group_by_length"}
Sample = dict[str, list[int]]


def samples(n: int, seed: int) -> list[Sample]:
    """Sequences in which a token depends on the one before: one of eight, which a model learns."""
    random = np.random.default_rng((seed, n))
    followers = np.random.default_rng(0).integers(0, N_IDS, (N_IDS, 8))
    lengths = random.lognormal(np.log(107), 0.9, n).clip(8, LONGEST).astype(int)
    made = []
    for length in lengths:
        ids = [int(random.integers(N_IDS))]
        for choice in random.integers(0, 8, length - 1):
            ids.append(int(followers[ids[-1], choice]))
        made.append({"input_ids": ids})
    return made


def model(seed: int) -> Any:
    """A GPT-2 of four layers of width 128."""
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=N_IDS,
        n_positions=LONGEST,
        n_embd=128,
        n_layer=4,
        n_head=4,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.GPT2LMHeadModel(config)


def times_to_fit() -> dict[tuple[int, int], float]:
    """Times of forward and backward passes of this model on this machine, without padding."""
    trained = model(0)

    def both_ms(n_rows: int, row_tokens: int) -> float:
        batch = padded_to_longest([{"input_ids": [5] * row_tokens}] * n_rows)

        def both() -> None:
            trained(**batch).loss.backward()

        return median_ms(both, 3)

    return {size: both_ms(*size) for size in FITTED}


class Clock(transformers.TrainerCallback):  # type: ignore[misc] # its types are not looked up
    """Time from the first step to the end of the last."""

    def __init__(self) -> None:
        self.begun_s = self.ended_s = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.begun_s = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.ended_s = time.perf_counter()


def train(
    strategy: str, size: int, seed: int, n_steps: int, cost: FunctionCost | None = None
) -> dict[str, Any]:
    """Trains an epoch; tokens per second, losses of steps, and the loss on other samples."""
    data = samples(PER_STEP * n_steps, seed)
    lengths = [len(sample["input_ids"]) for sample in data]
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=size,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=1 if cost else PER_STEP // size,
            train_sampling_strategy=STRATEGIES.get(strategy, "random"),
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
            "model": model(seed),
            "args": arguments,
            "train_dataset": data,
            "eval_dataset": samples(64, 99),
            "data_collator": padded_to_longest,
            "callbacks": [clock],
        }
        if cost:
            steps = PlannedSampler(lengths, cost, PER_STEP, limit=MOST_TOKENS, seed=seed)
            trainer = PlannedTrainer(**common, sampler=steps)
        else:
            trainer = transformers.Trainer(**common)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        loss = trainer.evaluate()["eval_loss"]
    return {
        "tokens_per_s": sum(lengths) / (clock.ended_s - clock.begun_s),
        "losses": [round(float(each), 4) for each in losses],
        "eval_loss": float(loss),
    }


def median_of(runs: list[dict[str, Any]], key: str) -> float:
    """Median of a number over runs."""
    return statistics.median(float(run[key]) for run in runs)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    by_size = {
        strategy: {
            str(size): train(strategy, size, 0, SCANNED_STEPS)["tokens_per_s"] for size in SIZES
        }
        for strategy in STRATEGIES
    }
    best = {name: max(SIZES, key=lambda size: found[str(size)]) for name, found in by_size.items()}
    times_ms = times_to_fit()
    cost = fitted_cost(times_ms)
    runs: Mapping[str, list[dict[str, Any]]] = {"random": [], "grouped": [], "planned": []}
    for seed in range(arguments.seeds):  # one after the other, so that all see the same load
        for name, of_name in runs.items():
            given = cost if name == "planned" else None
            of_name.append(train(name, best.get(name, 1), seed, N_STEPS, given))
    summary = {
        name: {key: median_of(of_name, key) for key in ("tokens_per_s", "eval_loss")}
        for name, of_name in runs.items()
    }
    for name, row in summary.items():
        of_size = f", batches of {best[name]}" if name in best else ""
        sys.stdout.write(f"{name}: {row['tokens_per_s']:,.0f} tokens/s{of_size}")
        sys.stdout.write(f", loss afterwards {row['eval_loss']:.4f}\n")
    better = max(summary["random"]["tokens_per_s"], summary["grouped"]["tokens_per_s"])
    ratio = summary["planned"]["tokens_per_s"] / better
    sys.stdout.write(f"planned: {ratio:.2f} times the better of the two\n")
    fastest = max(1e3 * n * tokens / ms for (n, tokens), ms in times_ms.items())
    sys.stdout.write(f"the fastest micro-batch alone: {fastest / better:.2f} times\n")
    if arguments.json:
        found = {"tokens_per_s_by_size": by_size, "best_size": best, "medians": summary}
        write_json(
            arguments.json,
            {**found, "ratio_to_better": ratio, "fastest_alone": fastest, "runs": dict(runs)},
        )


if __name__ == "__main__":
    main()

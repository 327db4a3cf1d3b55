"""Real tokens per second of the Hugging Face Trainer, by whose batches it trains.

    python benchmarks/hf_trainer.py [--lengths lognormal|multitask] [--longest 512|2048]
        [--json OUT.json] [--seeds 3]
    torchrun --nproc-per-node 2 benchmarks/hf_trainer.py ...

A small GPT-2 on one CPU thread, or one of every process, trains an epoch in steps of 64 samples.
The Trainer divides steps into batches of equal numbers of samples: in random order, with
`group_by_length`, and in random order with the samples of a batch end to end (`flattened`); or,
with `batch_rebalance`, into as many batches of equal cost by lengths (`rebalanced`). The others are
those of `PlannedTrainer` of `examples/`: `planned` pads rows, `packed` lays samples end to end;
their cost functions are fitted to times of a few micro-batches. Each is measured with every batch
size, or limit of tokens, over a part of an epoch, and then with its best. After the epoch, in which
all see the same samples, the loss on other samples says whether they learn the same from a token;
all but `grouped` and `rebalanced` have the same samples in every step.

Times of one process are those of the processor, so that other work disturbs them little. Of several
processes, which wait for the slowest of them, they are those of the wall clock; `waiting` is the
share of it in which their processors did not work.
"""

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import transformers
from torch import distributed

from measured import median_ms, write_json

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from attention_per_sample import register_attention_per_sample
from dynapipe_hpc import FunctionCost
from dynapipe_hpc.data.lengths_file import draw_lengths
from hf_sampler import PlannedSampler, fitted_cost, padded_to_longest
from planned_trainer import PlannedTrainer

N_PROCESSES, PROCESS = (
    int(os.environ.get(name, n)) for name, n in (("WORLD_SIZE", 1), ("RANK", 0))
)
now_s = time.process_time if N_PROCESSES == 1 else time.perf_counter
N_IDS, PER_STEP, N_STEPS = 1000, 64, 16
SCANNED_STEPS = 8
# Spread of log-normal lengths, whose median is 107, by the longest.
SPREADS = {512: 0.9, 2048: 1.2}
SIZES = (1, 2, 4, 8, 16, 32)  # samples
LIMITS = (512, 1024, 2048, 4096)  # tokens of a micro-batch
FITTED = [(n, m) for n in (1, 4, 16) for m in (16, 64, 256)] + [(2, 512)]
MEDIANS = ("tokens_per_s", "waiting", "eval_loss")
OF_LAYOUT = {False: "planned", True: "packed"}
Sample = dict[str, list[int]]
Mine = TypeVar("Mine")


class Method(NamedTuple):
    """Way in which samples get into micro-batches.

    Attributes:
        sizes: Batch sizes, or limits of tokens, among which the best is taken; a limit below the
            longest sample is raised to it.
        is_packed: Whether the samples of a micro-batch lie end to end.
        is_planned: Whether micro-batches are planned.
        sampling: Order of samples in the Trainer, to which they come in random order.
    """

    sizes: tuple[int, ...]
    is_packed: bool = False
    is_planned: bool = False
    sampling: str = "sequential"


METHODS = {
    "random": Method(SIZES),
    "grouped": Method(SIZES, sampling="group_by_length"),
    "rebalanced": Method(SIZES, sampling="batch_rebalance"),
    "flattened": Method(SIZES, is_packed=True),
    "planned": Method(LIMITS, is_planned=True),
    "packed": Method(LIMITS, is_packed=True, is_planned=True),
}


class Mixture(NamedTuple):
    """Lengths of samples.

    Attributes:
        name: Of "multitask", those of instructions of many tasks (`draw_lengths`); or
            "lognormal".
        longest: Longest length in tokens; longer samples are cut off.
    """

    name: str
    longest: int

    def lengths(self, n: int, seed: int) -> list[int]:
        """Tokens of some samples."""
        lengths: np.ndarray[Any, np.dtype[Any]]
        if self.name == "multitask":
            drawn = draw_lengths(n, seed)
            lengths = drawn.inputs + drawn.targets
        else:
            random = np.random.default_rng((seed, n))
            lengths = random.lognormal(np.log(107), SPREADS[self.longest], n)
        return [int(length) for length in lengths.clip(8, self.longest)]


def samples(n: int, seed: int, mixture: Mixture) -> list[Sample]:
    """Sequences in which a token depends on the one before: one of eight, which a model learns."""
    random = np.random.default_rng((seed, n, 1))
    followers = np.random.default_rng(0).integers(0, N_IDS, (N_IDS, 8))
    made = []
    for length in mixture.lengths(n, seed):
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
    """Collator of a method."""
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

    sizes = [*FITTED, (1, longest // 2), (1, longest), (2, longest // 2), (4, longest // 2)]
    measured_ms = {size: both_ms(*size) for size in sizes}
    return fitted_cost(of_processes(measured_ms)[0])  # all processes need the same


def of_processes(mine: Mine) -> list[Mine]:
    """Values of all processes."""
    found = [mine] * N_PROCESSES
    if N_PROCESSES > 1:
        distributed.all_gather_object(found, mine)
    return found


class Clock(transformers.TrainerCallback):  # type: ignore[misc] # its types are not looked up
    """Work of a process from the first step to the end of the last.

    Attributes:
        seconds: Time.
        busy_s: Time of its processor.
        n_tokens: Real tokens.
    """

    def __init__(self) -> None:
        self.seconds = self.busy_s = 0.0
        self.n_tokens = 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.seconds, self.busy_s = -now_s(), -time.process_time()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.seconds += now_s()
        self.busy_s += time.process_time()

    def counted(self, training_step: Callable[..., Any]) -> Callable[..., Any]:
        """The same, with its tokens added up."""

        def step(trained: Any, inputs: Any, *others: Any) -> Any:
            for batch in inputs if isinstance(inputs, list) else [inputs]:
                is_token = batch.get("attention_mask", torch.ones_like(batch["input_ids"]))
                self.n_tokens += int(is_token.sum())
            return training_step(trained, inputs, *others)

        return step


def together(clocks: Sequence[Clock]) -> dict[str, float]:
    """Speed of all processes."""
    seconds = max(clock.seconds for clock in clocks)
    return {
        "tokens_per_s": sum(clock.n_tokens for clock in clocks) / seconds,
        "waiting": 1 - statistics.mean(clock.busy_s for clock in clocks) / seconds,
    }


def train(
    method: Method, size: int, seed: int, n_steps: int, mixture: Mixture, cost: FunctionCost
) -> dict[str, float]:
    """Trains an epoch, or its first steps, and says how fast, and what was learnt.

    A part of the epoch has the samples that it would have in a whole one, as `group_by_length`
    sorts samples of many steps.
    """
    data = samples(PER_STEP * N_STEPS, seed, mixture)
    in_order = np.random.default_rng((seed, 0)).permutation(len(data))  # as a PlannedSampler does
    lengths = [len(sample["input_ids"]) for sample in data]
    n_batches = 1 if method.is_planned else PER_STEP // (size * N_PROCESSES)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder,
            max_steps=n_steps,
            per_device_train_batch_size=1 if method.is_planned else size,
            per_device_eval_batch_size=8,
            gradient_accumulation_steps=n_batches,
            train_sampling_strategy=method.sampling,
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            seed=seed,
        )
        common = {
            "model": model(seed, mixture.longest, method),
            "args": arguments,
            "train_dataset": data if method.is_planned else [data[i] for i in in_order],
            "eval_dataset": samples(64, 99, mixture),
            "data_collator": collator(method),
            "callbacks": [clock],
        }
        if method.is_planned:
            steps = PlannedSampler(
                lengths,
                cost,
                PER_STEP,
                limit=max(size, mixture.longest),
                n_replicas=N_PROCESSES,
                replica=PROCESS,
                packed=method.is_packed,
                seed=seed,
            )
            trainer: Any = PlannedTrainer(**common, sampler=steps)
        else:
            trainer = transformers.Trainer(**common)
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.training_step = clock.counted(trainer.training_step)
        trainer.train()
        trainer.data_collator = padded_to_longest  # losses of all are means over the same batches
        trainer.model.set_attn_implementation("sdpa")
        loss = trainer.evaluate()["eval_loss"]
    return {**together(of_processes(clock)), "eval_loss": float(loss)}


def say(text: str) -> None:
    """Prints a line, once for all processes."""
    if PROCESS == 0:
        print(text, flush=True)


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", choices=("lognormal", "multitask"), default="lognormal")
    parser.add_argument("--longest", type=int, choices=SPREADS, default=512)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    mixture = Mixture(arguments.lengths, arguments.longest)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    if N_PROCESSES > 1:
        distributed.init_process_group("gloo")
    register_attention_per_sample()
    costs = {
        is_packed: measured_cost(mixture.longest, METHODS[name])
        for is_packed, name in OF_LAYOUT.items()
    }

    def measured(name: str, size: int, seed: int, n_steps: int) -> dict[str, float]:
        method = METHODS[name]
        run = train(method, size, seed, n_steps, mixture, costs[method.is_packed])
        say(f"{name}, {size}, seed {seed}, {n_steps} steps: {run['tokens_per_s']:,.0f} tokens/s")
        return run

    by_size: dict[str, dict[str, float]] = {}
    for name, method in METHODS.items():
        of_name = by_size[name] = {}
        for size in method.sizes:
            of_name[str(size)] = measured(name, size, 0, SCANNED_STEPS)["tokens_per_s"]
            if of_name[str(size)] < 0.75 * max(of_name.values()):
                break  # speed has one peak, and large random batches take minutes
    best = {name: int(max(found, key=found.__getitem__)) for name, found in by_size.items()}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    for seed in range(arguments.seeds):  # one after the other, so that all see the same load
        for name, of_seeds in runs.items():
            of_seeds.append(measured(name, best[name], seed, N_STEPS))
    summary = {
        name: {key: statistics.median(run[key] for run in of_name) for key in MEDIANS}
        for name, of_name in runs.items()
    }
    better = max(summary[name]["tokens_per_s"] for name in ("random", "grouped"))
    ratios = {name: row["tokens_per_s"] / better for name, row in summary.items()}
    for name, row in summary.items():
        say(
            f"{name}, {best[name]}: {row['tokens_per_s']:,.0f} tokens/s, {ratios[name]:.2f} times "
            f"the best of the first two, {row['waiting']:.1%} waiting, loss {row['eval_loss']:.4f}"
        )
    if arguments.json and PROCESS == 0:
        found = {
            "lengths": mixture.name,
            "longest": mixture.longest,
            "processes": N_PROCESSES,
            "tokens_per_s_by_size": by_size,
            "best_size": best,
            "medians": summary,
            "ratios_to_better": ratios,
            "runs": runs,
        }
        write_json(arguments.json, found)


if __name__ == "__main__":
    main()

"""A simulation, not a measurement: layers measured on one GPU, planned in pipelines of several.

    python benchmarks/gpu_pipelines.py TABLE.h5 [--longest 8192] [--json OUT.json]

TABLE.h5 is the cost table that `gpu_lengths.py` leaves in its folder, and --longest what it was
called with; those of an H100 and, with --longest 8192, an H200 are `results/gpt_350m_*.h5`. Batches
are those of that benchmark; stages are joined by NVSwitch.
Times are means over the batches, in ms. `over rules` and `of slices` is what plans with slices
gain over the better rule and over whole samples, `most` the largest gain of slices for a batch. The
rules of today have for each batch the size whose plan is predicted to be fastest. All have the same
schedules with split backward passes.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config
from gpu_layouts import CONFIGS
from gpu_lengths import MAXIMA, SIZES, make_corpus
from measured import print_table, write_json

STAGES, N_BATCHES = (4, 8), 8
RULES = {
    "budget": '{rule = "token_budget"}',
    "packed": '{rule = "packed_balanced"}',
    "whole": '{rule = "dynamic", layouts = ["packed"], slices = "off"}',
    "slices": '{rule = "dynamic", layouts = ["packed"], slices = "auto"}',
}
LINK = "cluster.link={latency_ms=0.02, bytes_per_ms=3.6e8}"  # as in configs/clusters/h100_1x8.toml
MEMORY = 'cluster.device_memory_bytes="76GB"'
GAINS = ("over rules", "of slices", "most")
COLUMNS = dict.fromkeys(RULES, "{:.0f}") | dict.fromkeys(GAINS, "{:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--longest", type=int, choices=MAXIMA, default=MAXIMA[-1])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for maximum in (each for each in MAXIMA if each <= arguments.longest):
            corpus = make_corpus(Path(name), maximum)
            for n_stages in STAGES:
                settings = settings_of(
                    arguments.table, corpus, maximum, n_stages, arguments.longest
                )
                results[f"{maximum:,}; {n_stages} stages"] = compared(settings)
    print_table(results, COLUMNS)
    if arguments.json:
        write_json(arguments.json, results)


def settings_of(table: Path, corpus: Path, maximum: int, n_stages: int, longest: int) -> list[str]:
    return [
        *SIZES,
        f'planner.cost.path="{table.resolve()}"',
        f'data.dataset="{corpus}"',
        f"data.max_tokens={maximum}",
        f"model.max_tokens={longest}",
        f"cluster.n_stages={n_stages}",
        "planner.schedule.split_backward=true",
        LINK,
        MEMORY,
    ]


def compared(settings: Sequence[str]) -> dict[str, float]:
    """Times of all rules, and what dynamic micro-batches and slices gain."""
    times = {rule: predicted_ms([*settings, f"planner.batch={b}"]) for rule, b in RULES.items()}
    means = {rule: mean(of_rule) for rule, of_rule in times.items()}
    gains = [a / b for a, b in zip(times["whole"], times["slices"], strict=True)]
    over = min(means["budget"], means["packed"]) / means["slices"], means["whole"] / means["slices"]
    return means | dict(zip(GAINS, (*over, max(gains)), strict=True))


def predicted_ms(settings: Sequence[str]) -> list[float]:
    """Predicted times of iterations; infinite if a micro-batch does not fit."""
    experiment = Experiment(load_config(CONFIGS / "gpt.toml", [*settings])).open()
    batches = [experiment.sampler.iteration(k) for k in range(N_BATCHES)]
    try:
        plans = [experiment.planner.make_plans(k, batch) for k, batch in enumerate(batches)]
    except InputError:
        return [float("inf")] * N_BATCHES
    return [of_ranks[0].prediction.iteration_ms for of_ranks in plans]


if __name__ == "__main__":
    main()

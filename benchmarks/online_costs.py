"""Gain of costs that a run corrects, where the cost table is wrong or a rank slow.

    python benchmarks/online_costs.py [--seeds 3] [--json OUT.json]

With `--output` it is a rank of a job that it starts, on a core of its own.

Two ranks, each on a core of its own, train a model like that of the demo (four layers of width
256, samples of up to 512 tokens).

`wrong table`: two stages. All times of the table are multiplied by 0.5 to 2 at random, by stage and
part of training (forward, gradients of inputs, gradients of weights), or left as they are. Every
seed trains three times on the same batches: by the true table, by the wrong one, and by the wrong
one with `planner.cost.online`.

`slow rank`: two replicas. After 25 iterations another process, of lower priority, begins to share
the core of rank 1, which so gets two thirds of it. Every seed trains with and without
`planner.cost.online`.

`error` is the median of |predicted - measured| / measured time in % over the last iterations;
`ratio` is that of their measured times to those of the same iterations by the true table, or
without correction (median over iterations, then over seeds, with the extremes of seeds).
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.run.run import run_experiment
from dynapipe_hpc.experiment.run.start import start_experiment
from dynapipe_hpc.job.job import open_job
from dynapipe_hpc.planner.cost.corrected_cost import Corrections
from dynapipe_hpc.planner.cost.pass_times import shape_of
from dynapipe_hpc.report.records import IterationRecord
from dynapipe_hpc.report.run_folder import RunFolder
from measured import SETTINGS, dynapipe, launched, print_table, write_corpus, write_json

CONFIG = Path(__file__).parents[1] / "configs" / "demo" / "base.toml"
MOST = 2.0
"""Entries of a wrong table are multiplied by up to this factor, or divided by it."""
SIZES: dict[str, int] = {
    "model.n_layers": 4,
    "model.hidden_size": 256,
    "model.n_heads": 4,
    "model.ffn_size": 1024,
    "model.max_tokens": 512,
    "data.max_tokens": 512,
    "data.tokens_per_batch": 4096,
}
N_WRONG, N_SLOW, SLOW_AFTER = 40, 55, 25
LAST = 20
"""Iterations at the end that are compared."""
NICE = 3
"""Priority of what takes a third of a core: its weight is 526, that of a rank 1,024."""
COLUMNS = {"error": "{:.1f}", "ratio": "{:.3f}", "least": "{:.3f}", "most": "{:.3f}"}

Records = Sequence[IterationRecord]
Row = dict[str, float]


class Trainer:
    """Runs of one division of the model over two ranks."""

    def __init__(self, folder: Path, division: dict[str, int]) -> None:
        """Profiles it."""
        self._folder = folder
        self._costs = folder / "costs.h5"
        self._costs.unlink(missing_ok=True)
        self._common = [
            f"data.dataset='{folder / 'corpus.h5'}'",
            f"planner.cost.path='{self._costs}'",
            "planner.batch.layouts=['padded', 'packed']",
            *(f"{key}={value}" for key, value in (SIZES | division).items()),
        ]
        largest = ("--microbatch-tokens", 1024)
        dynapipe("profile", CONFIG, "-o", self._costs, *largest, *self._sets(), n_ranks=2)

    def _sets(self, *settings: str) -> list[str]:
        return [word for each in (*self._common, *settings) for word in ("--set", each)]

    def train(self, name: str, seed: int, n: int, *options: str, online: bool) -> Records:
        """The iterations of a run; from SLOW_AFTER on something else runs beside rank 1, if any."""
        output = self._folder / f"{name}-{seed}"
        settings = [
            f"data.seed={seed}",
            f"training.iterations={n}",
            "training.warmup_iterations=0",
            f"planner.cost.online={str(online).lower()}",
        ]
        words = (sys.executable, __file__, "--output", output, *options, *self._sets(*settings))
        other: subprocess.Popen[bytes] | None = None
        with subprocess.Popen(
            launched(*words, n_ranks=2),
            env={**os.environ, **SETTINGS},
            stdout=subprocess.PIPE,
            text=True,
        ) as job:
            for line in job.stdout or ():
                if "as long as usual" in line:
                    print(f"{name}, seed {seed}: {line}", end="", flush=True)
                if n == N_SLOW and line.startswith(f"iteration {SLOW_AFTER - 1}:"):
                    other = beside_rank_1()
        if other:
            other.kill()
            other.wait()
        if job.returncode:
            raise SystemExit(f"{name} has failed")
        return list(RunFolder.open(output).records())


def beside_rank_1() -> "subprocess.Popen[bytes]":
    """A process on the core of rank 1 that never waits."""
    busy = (sys.executable, "-c", "while True: pass")
    return subprocess.Popen(["nice", "-n", str(NICE), "taskset", "-c", "1", *busy])  # noqa: S607


def error_of(records: Records) -> float:
    """Median relative error of the last predictions in %."""
    last = records[-LAST:]
    return 100 * median(abs(r.predicted_ms / r.measured_ms - 1) for r in last)


def ratio_of(records: Records, others: Records) -> float:
    """Median ratio of the last measured times to those of the same iterations of another run."""
    pairs = zip(records[-LAST:], others[-LAST:], strict=True)
    return median(mine.measured_ms / other.measured_ms for mine, other in pairs)


def rows_of(seeds: Sequence[dict[str, Records]], compared_with: str) -> dict[str, Row]:
    """A row per kind of run."""
    return {
        name: {
            "error": median(error_of(runs[name]) for runs in seeds),
            "ratio": median(ratios := [ratio_of(r[name], r[compared_with]) for r in seeds]),
            "least": min(ratios),
            "most": max(ratios),
        }
        for name in seeds[0]
    }


def measure_all(n_seeds: int) -> dict[str, dict[str, Row]]:
    """The rows of both questions."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_corpus(folder, "--max-bytes", 512)
        stages = Trainer(folder, {"cluster.n_stages": 2, "cluster.n_replicas": 1})
        wrong = [
            {
                "true table": stages.train("true", seed, N_WRONG, online=False),
                "wrong table": stages.train(
                    "wrong", seed, N_WRONG, "--wrong", str(seed), online=False
                ),
                "wrong table, online": stages.train(
                    "online", seed, N_WRONG, "--wrong", str(seed), online=True
                ),
            }
            for seed in range(1, n_seeds + 1)
        ]
        replicas = Trainer(folder, {"cluster.n_stages": 1, "cluster.n_replicas": 2})
        slow = [
            {
                "slow rank": replicas.train("slow", seed, N_SLOW, online=False),
                "slow rank, online": replicas.train("slow-online", seed, N_SLOW, online=True),
            }
            for seed in range(1, n_seeds + 1)
        ]
    return {"wrong table": rows_of(wrong, "true table"), "slow rank": rows_of(slow, "slow rank")}


def make_costs_wrong(experiment: Experiment, seed: int) -> None:
    """Multiplies times at random, by stage and part of training."""
    shape = shape_of(experiment.config.cluster.n_stages)
    powers = np.random.default_rng(seed).uniform(-1, 1, shape[2:])
    wrong = Corrections(np.broadcast_to(MOST**powers, shape))
    experiment.planner = experiment.corrected_planner(wrong)


def run_rank(output: Path, overrides: Sequence[str], wrong: int | None) -> None:
    """Trains; `wrong` is the seed of what costs are multiplied by, if they are."""
    with open_job() as job:
        os.sched_setaffinity(0, {job.rank})
        experiment = start_experiment(job, CONFIG, overrides)
        if wrong is not None:
            make_costs_wrong(experiment, wrong)
        run_experiment(job, experiment, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--output", type=Path, help="of a rank's run")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--wrong", type=int)
    arguments = parser.parse_args()
    if arguments.output:
        run_rank(arguments.output, arguments.set, arguments.wrong)
        return
    found = measure_all(arguments.seeds)
    for question, rows in found.items():
        print(f"\n{question}")
        print_table(rows, COLUMNS)
    if arguments.json:
        write_json(arguments.json, found)


if __name__ == "__main__":
    main()

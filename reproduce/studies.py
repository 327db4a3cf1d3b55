"""Simulations that figures are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dynapipe_hpc.data.lengths_file import MultitaskLengths, draw_lengths
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config, with_cost_table, with_tables
from dynapipe_hpc.experiment.study.predict import Choosers, Planned
from dynapipe_hpc.experiment.study.simulate import simulate
from dynapipe_hpc.job.ranks import Alone, Ranks
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.from_config import MeasuredCosts, load_table
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable, UpdateProfile
from reproduce.cluster import reduce_ms_per_byte

HERE = Path(__file__).parent
TABLES = {"gpt": "a100_40gb_gpt_6.7b.csv", "t5": "a100_40gb_t5_11b.csv"}
MODELS = {"gpt": "GPT 6.7B", "t5": "T5 11B"}
N_SAMPLES = 100_000
SEEDS = (0, 1, 2)
N_BATCHES = 4
FROM_TABLES = "from times and memory of layers that the paper's authors measured on A100-40GB"

Method = Mapping[str, Any]
"""A [[study.methods]] table."""


def simulated(n_batches: int | str) -> str:
    """Description of simulated batches, for the inputs of a figure."""
    return (
        f"Simulated: {n_batches} global batches for each of {len(SEEDS)} seeds of drawn lengths, "
        f"planned {FROM_TABLES}; reductions of gradients are estimated, and optimizer steps take "
        "no time. Points are medians over seeds, bars their range."
    )


class Study(NamedTuple):
    """Methods that are compared on the same batches.

    Attributes:
        name: Name of the study.
        family: Model, gpt or t5.
        methods: Methods to compare.
        tables: Keys that the experiment has instead of those of its file, table by table.
        seeds: Seeds of drawn lengths, each a simulation.
    """

    name: str
    family: str
    methods: Sequence[Method]
    tables: Mapping[str, Mapping[str, Any]]
    seeds: Sequence[int] = SEEDS


Found = Mapping[str, Sequence[Sequence[Planned]]]
"""Iterations of every seed, by the name of the study."""


@dataclass(frozen=True, slots=True)
class Studies:
    """Simulations of one start.

    Attributes:
        ranks: Processes among which simulations are dealt.
        inputs: Folder with profiles/, see benchmarks/a100_inputs.py.
        output: Folder of cost tables with what these clusters add.
        choosers: Choosers of methods that no table stands for, see `simulate`.
    """

    ranks: Ranks
    inputs: Path
    output: Path
    choosers: Choosers

    def run(self, studies: Sequence[Study]) -> Found:
        """Simulates all studies; all ranks together.

        Returns:
            All iterations, on all ranks.
        """
        every = [(study, seed) for study in studies for seed in study.seeds]
        mine = every[self.ranks.rank :: self.ranks.size]
        with self.ranks.fail_together():
            own = {
                (study.name, seed): [each for outcome in outcomes for each in outcome.planned]
                for study, seed in mine
                for outcomes in [
                    simulate(Alone(), self.files(study, seed), None, choosers=self.choosers)
                ]
            }
        gathered = self.ranks.gather(own)
        found = self.ranks.broadcast({key: of for each in gathered for key, of in each.items()})
        return {study.name: [found[study.name, seed] for seed in study.seeds] for study in studies}

    def files(self, study: Study, seed: int) -> Experiment:
        """Files of one simulation; lengths and tables are read once per process."""
        base = _base(study.family)
        data = {**study.tables.get("data", {}), "lengths": {"n_samples": N_SAMPLES, "seed": seed}}
        tables = {**study.tables, "data": data, "study": {"methods": list(study.methods)}}
        config = with_tables(base, study.family, tables)
        path, table = _table(
            study.family, self.inputs, self.output, reduce_ms_per_byte(config.cluster)
        )
        files = Experiment(with_cost_table(config, path))
        match files.config.planner.cost:
            case ProfiledConfig() as cost:
                files.costs = MeasuredCosts(cost, table)
        files.drawn = _drawn(seed)
        return files


@cache
def _base(family: str) -> ExperimentConfig:
    return load_config(HERE / f"{family}.toml")


@cache
def _drawn(seed: int) -> MultitaskLengths:
    return draw_lengths(N_SAMPLES, seed)


@cache
def _table(
    family: str, inputs: Path, output: Path, ms_per_byte: float
) -> tuple[Path, ProfileTable]:
    """A cost table with reductions of gradients, also as a file that configurations name."""
    measured = inputs / "profiles" / TABLES[family]
    costs = load_table(measured, _base(family).model)
    table = replace(costs, update=UpdateProfile(reduce_ms_per_byte=ms_per_byte))
    path = output / "costs" / f"{family}_{ms_per_byte:.3e}.h5"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(table, path)
    return path, table


def of_method(planned: Sequence[Planned], method: str) -> list[Planned]:
    """The iterations of one method."""
    return [each for each in planned if each.record.method == method]

"""Simulations that figures are made of."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.load import load_config, with_tables
from dynapipe_hpc.experiment.study.simulate import simulate
from dynapipe_hpc.job.ranks import Ranks
from dynapipe_hpc.report.simulation_folder import Planned

HERE = Path(__file__).parent
TABLES = {"gpt": "a100_40gb_gpt_6.7b.csv", "t5": "a100_40gb_t5_11b.csv"}
MODELS = {"gpt": "GPT 6.7B", "t5": "T5 11B"}
SEEDS = (0, 1, 2)
N_BATCHES = 4
SIMULATED = (
    f"Simulated: {N_BATCHES} global batches for each of {len(SEEDS)} seeds of drawn lengths, "
    "planned from times and memory of layers that the paper's authors measured on A100-40GB; the "
    "tables know neither reductions of gradients nor optimizer steps. Points are medians over "
    "seeds, bars their range."
)

Method = Mapping[str, Any]
"""A [[study.methods]] table."""


@dataclass(frozen=True, slots=True)
class Studies:
    """Simulations of one start; those that an earlier start has finished are read.

    Attributes:
        ranks: Processes that share every simulation.
        inputs: Folder with profiles/, see benchmarks/a100_inputs.py.
        output: Folder of all simulations.
    """

    ranks: Ranks
    inputs: Path
    output: Path

    def run(
        self, name: str, family: str, methods: Sequence[Method], **tables: Mapping[str, Any]
    ) -> Iterator[list[Planned]]:
        """Simulates methods for every seed.

        Args:
            name: Name of the folder.
            family: Model, gpt or t5.
            methods: Methods to compare.
            tables: Keys that the experiment has instead of those of its file, table by table.

        Yields:
            The iterations of one seed; an empty list except on the first rank.
        """
        path = HERE / f"{family}.toml"
        table = self.inputs / "profiles" / TABLES[family]
        config = load_config(path, [f"planner.cost.path='{table}'"])
        for seed in SEEDS:
            data = {**tables.get("data", {}), "lengths": {"seed": seed}}
            of_seed = {**tables, "data": data, "study": {"methods": list(methods)}}
            files = ExperimentFiles(with_tables(config, str(path), of_seed))
            yield simulate(self.ranks, files, self.output / name / f"seed_{seed}")


def of_method(planned: Sequence[Planned], method: str) -> list[Planned]:
    """The iterations of one method."""
    return [each for each in planned if each.record.method == method]

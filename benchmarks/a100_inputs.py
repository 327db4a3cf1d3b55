"""Inputs and planners of benchmarks: A100 layer profiles and batches of sample lengths.

Profiles and lengths are read from a folder with profiles/ (CSV) and lengths/ (JSON), which is not
part of the project; docs/formats.md describes the CSV.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from dynapipe_hpc.architecture.decoder import GptShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.lengths_file import read_lengths, samples_of_lengths
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.config import DynamicConfig
from dynapipe_hpc.planner.choose.config import SearchConfig
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.import_csv import import_csv
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable
from dynapipe_hpc.planner.from_config import dynamic_chooser
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.config import ScheduleConfig
from dynapipe_hpc.planner.schedule.rules import schedule_rules

GPT = GptShape(
    n_layers=16, hidden_size=4096, n_heads=32, ffn_size=16384, vocab_size=50304, max_tokens=8192
)
NAME = "a100_40gb_gpt_6.7b"
Mode = Literal["none", "selective", "full"]
ONE_MODE: tuple[Mode, ...] = ("none",)
THREE_MODES: tuple[Mode, ...] = ("none", "selective", "full")


def equal_shares(shape: ModelShape, cluster: Cluster) -> Placement:
    """As many layers on every stage, remainder aside."""
    return Placement.equal_shares(shape.n_all_layers, cluster.n_stages)


class Devices(NamedTuple):
    """A model on devices, with its costs there."""

    shape: ModelShape
    cluster: Cluster
    cost: CostModel

    def planner(self, search: SearchConfig) -> Planner:
        """A planner of padded and packed rows; backward passes may be split."""
        rules = schedule_rules(ScheduleConfig(split_backward=True))
        batch = DynamicConfig(layouts=("padded", "packed"))
        chooser = dynamic_chooser(batch, search, rules, cost=self.cost, cluster=self.cluster)
        boundaries = equal_shares(self.shape, self.cluster).boundaries(self.shape)
        width = self.shape.hidden_size
        return Planner(chooser, self.cost, self.cluster, width, boundaries, split_backward=True)


def a100_devices(
    table: ProfileTable,
    cluster: Cluster,
    shape: ModelShape = GPT,
    modes: tuple[Mode, ...] = THREE_MODES,
    *,
    is_smoothed: bool = True,
) -> Devices:
    """A model with measured costs."""
    config = ProfiledConfig(path=Path("a100.csv"), recompute=modes)
    placement = equal_shares(shape, cluster)
    return Devices(
        shape,
        cluster,
        profiled_cost(table, shape, placement, cluster, config=config, is_smoothed=is_smoothed),
    )


def batches(folder: Path, name: str) -> list[list[Sample]]:
    """The batches of a file of lengths."""
    return [
        samples_of_lengths(batch) for batch in read_lengths(folder / "lengths" / f"{name}.json")
    ]


def in_authors_rows(samples: Sequence[Sample]) -> list[Sample]:
    """Samples in rows of the authors' plans, which leave out the last token."""
    return [replace(s, input_tokens=max(0, s.input_tokens - 1)) for s in samples]


@cache
def a100_table(folder: Path) -> ProfileTable:
    """The layers of the authors' GPT 6.7B."""
    measured, weights = (folder / "profiles" / f"{NAME}{end}.csv" for end in ("", "_parameters"))
    return import_csv(measured, weights, GPT)

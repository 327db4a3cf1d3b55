"""Whole runs of several methods, planned but not executed, in a folder that keeps what is done."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from pydantic.dataclasses import dataclass as validated

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.atomic_write import remove_unfinished, writing
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.run_lock import locked
from dynapipe_hpc.experiment.study.predict import Planned, PlannedIteration, methods_of, plan_once
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.job.ranks import Ranks
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.from_config import MeasuredCosts
from dynapipe_hpc.planner.cost.table.checksum import checksum_of
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.report.lines_file import JsonLines
from dynapipe_hpc.report.run_folder import write_atomically

CONFIG, INPUTS = "config.toml", "inputs.json"
PLANNED, PLANNING = "planned.jsonl", "planning.jsonl"
_PARTS = "parts"

Choosers = Mapping[str, Callable[[CostModel, Cluster], Chooser]]
"""Functions that make the choosers of methods, by the name of the method."""

NO_CHOOSERS: Choosers = {}


def simulate(
    ranks: Ranks,
    files: Experiment,
    output: Path,
    on_share: Callable[[float], None] = lambda _: None,
    *,
    choosers: Choosers = NO_CHOOSERS,
) -> list[Planned]:
    """Plans all iterations of a run by every method; the ranks share them (collective).

    What is predicted does not depend on the number of ranks. Iterations that an earlier start in
    the same folder planned are not planned again.

    Args:
        ranks: The processes.
        files: Files of the experiment.
        output: Folder of the simulation, see docs/formats.md.
        on_share: Callback that takes the finished share of this rank's iterations.
        choosers: Choosers of methods that no table stands for, by the name of the method.

    Returns:
        All iterations, by method, on the first rank; an empty list elsewhere.
    """
    keep_freed_memory()
    with ranks.fail_together():
        methods = methods_of(files.config)
        variants = {each.method: files.variant(each.applied_to(files.config)) for each in methods}
    with locked(ranks, output) as lock:
        folder = SimulationFolder(output)
        done: dict[tuple[str, int], Planned] = {}
        with ranks.fail_together():
            every = list(product(variants, range(files.training.n_iterations)))
            if ranks.is_first:
                folder.begin(to_toml(files.config), _inputs_of(files, variants.values()))
                done = folder.planned()
        missing = ranks.broadcast([key for key in every if key not in done])
        n_parts = ranks.broadcast(len(folder.parts))
        placed = _placed(ranks, variants if missing else {})
        planners: dict[str, Planner] = {}
        own_part: list[Planned] = []
        with ranks.fail_together():
            mine = missing[ranks.rank :: ranks.size]
            for name, iteration in mine:
                samples = files.sampler.iteration(iteration)
                if name not in planners:
                    planner = variants[name].planner_of(placed[name])
                    if name in choosers:
                        by_method = choosers[name](planner.cost, planner.cluster)
                        planner = replace(planner, chooser=by_method)
                    planners[name] = planner
                    # The first plan also makes tables of costs, which runs do once.
                    plan_once(planner, name, iteration, samples)
                own_part.append(plan_once(planners[name], name, iteration, samples))
                if ranks.is_first:
                    lock.check()
                folder.add(f"{n_parts:05d}-{ranks.rank:05d}.jsonl", own_part[-1])
                on_share(len(own_part) / len(mine))
        done |= {each.record.key: each for of_rank in ranks.gather(own_part) for each in of_rank}
        results = [done[key] for key in every] if ranks.is_first else []
        with ranks.fail_together():
            if ranks.is_first and folder.parts:
                lock.check()
                folder.end(results)
        return results


def _placed(ranks: Ranks, variants: Mapping[str, Experiment]) -> dict[str, Placement]:
    """Layers on the stages of every method; the ranks share the work."""
    with ranks.fail_together():
        mine = list(variants)[ranks.rank :: ranks.size]
        of_own = {name: variants[name].placement for name in mine}
    return ranks.broadcast({n: p for of_rank in ranks.gather(of_own) for n, p in of_rank.items()})


def _inputs_of(files: Experiment, variants: Iterable[Experiment]) -> dict[str, str]:
    lengths = hashlib.blake2b(digest_size=8)
    for numbers in files.trained:
        lengths.update(np.ascontiguousarray(numbers, "<i8").data)
    checksums = {"the samples": lengths.hexdigest()}
    for costs in (variant.costs for variant in variants):
        if isinstance(costs, MeasuredCosts):
            checksums[f"the cost table {costs.config.path}"] = checksum_of(costs.table)
    return checksums


@validated(frozen=True, slots=True)
class PlanningTime:
    """Measured time of planning an iteration, see `Planned`: a line of planning.jsonl."""

    method: str
    iteration: int
    planning_ms: float


_RECORDS, _TIMES, _PART = JsonLines(PlannedIteration), JsonLines(PlanningTime), JsonLines(Planned)


class SimulationFolder:
    """A simulation on disk; docs/formats.md describes the files.

    Ranks add complete lines to parts of their own, which become two files at the end. So a
    simulation that is killed loses no iteration whose line is complete.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, config_toml: str, inputs: Mapping[str, str]) -> None:
        """Creates the folder, or checks that it holds a part of this simulation."""
        config = self.path / CONFIG
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            others = {each.name for each in self.path.iterdir() if each.name[0] != "."}
        except OSError as error:
            raise InputError(
                f"{self.path}: cannot be written: {error.strerror}; choose another folder"
            ) from None
        if others and not others <= {CONFIG, INPUTS, PLANNED, PLANNING, _PARTS}:
            raise InputError(f"{self.path} holds files that no simulation wrote; name a new folder")
        if CONFIG in others and read_text(config) != config_toml:
            raise InputError(
                f"{self.path} holds a simulation of another configuration (its {CONFIG}); name "
                "another folder, or remove this one"
            )
        if INPUTS in others:
            self._check_inputs(inputs)
        remove_unfinished(self.path, CONFIG, INPUTS, PLANNED, PLANNING)
        if INPUTS not in others:
            write_atomically(self.path / INPUTS, json.dumps(inputs, indent=1) + "\n")
        if CONFIG not in others:
            write_atomically(config, config_toml)

    @property
    def parts(self) -> list[Path]:
        return sorted((self.path / _PARTS).glob("*.jsonl"))

    def planned(self) -> dict[tuple[str, int], Planned]:
        """The iterations that are planned; an `InputError` names a damaged line."""
        planned = [each for part in self.parts for _, each in _PART.read(part)]
        if (self.path / PLANNED).exists():
            records = _RECORDS.read(self.path / PLANNED)
            times = _TIMES.read(self.path / PLANNING)
            for (_, record), (_, time) in zip(records, times, strict=True):
                planned.append(Planned(record, time.planning_ms))
        return {each.record.key: each for each in planned}

    def add(self, name: str, planned: Planned) -> None:
        """Adds an iteration to a part, which no earlier start has; a `RunError` says why not."""
        path = self.path / _PARTS / name
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as part:
                part.write(_PART.line(planned))

    def end(self, planned: Sequence[Planned]) -> None:
        times = (PlanningTime(*each.record.key, each.planning_ms) for each in planned)
        write_atomically(self.path / PLANNING, "".join(map(_TIMES.line, times)))
        records = (_RECORDS.line(each.record) for each in planned)
        write_atomically(self.path / PLANNED, "".join(records))
        with writing(self.path / _PARTS):
            shutil.rmtree(self.path / _PARTS)

    def _check_inputs(self, inputs: Mapping[str, str]) -> None:
        path = self.path / INPUTS
        try:
            stored = dict(json.loads(read_text(path)))
        except (ValueError, TypeError, RecursionError):
            raise InputError(f"{path}: is damaged; remove {self.path}") from None
        for name, checksum in inputs.items():
            if stored.get(name) != checksum:
                raise InputError(
                    f"{self.path} holds a simulation with other contents of {name} (checksum "
                    f"{quoted(stored.get(name))}, now {checksum}); restore them, name another "
                    "folder, or remove this one"
                )

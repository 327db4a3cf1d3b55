"""Whole runs of several methods, planned but not executed, and the folder of the predictions."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
from pydantic.dataclasses import dataclass as validated

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.atomic_write import new_folder, writing
from dynapipe_hpc.data.errors import InputError, quoted
from dynapipe_hpc.data.input_file import read_text
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.study.predict import Planned, PlannedIteration, methods_of, plan_once
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.job.ranks import Ranks
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.choice import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.from_config import MeasuredCosts
from dynapipe_hpc.planner.cost.table.profile_table import checksum_of
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.report.lines_file import LinesFile

CONFIG, INPUTS = "config.toml", "inputs.json"
PLANNED, PLANNING = "planned.jsonl", "planning.jsonl"

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

    What is predicted does not depend on the number of ranks. The folder appears when all is
    planned; a later call with the same configuration and inputs reads it.

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
    known: list[Planned] = []
    with ranks.fail_together():
        methods = methods_of(files.config)
        variants = {each.method: files.variant(each.applied_to(files.config)) for each in methods}
        every = list(product(variants, range(files.training.n_iterations)))
        if ranks.is_first:
            of_folder = to_toml(files.config), _inputs_of(files, variants.values())
            known = _read(output, *of_folder, every) if output.exists() else []
    if ranks.broadcast(bool(known)):
        return known
    placed = _placed(ranks, variants)
    planners: dict[str, Planner] = {}
    own_part: list[Planned] = []
    with ranks.fail_together():
        mine = every[ranks.rank :: ranks.size]
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
            on_share(len(own_part) / len(mine))
    of_ranks = ranks.gather(own_part)
    done = {each.record.key: each for of_rank in of_ranks for each in of_rank}
    results = [done[key] for key in every] if ranks.is_first else []
    with ranks.fail_together():
        if ranks.is_first:
            _write(output, *of_folder, results)
    return results


def _placed(ranks: Ranks, variants: Mapping[str, Experiment]) -> dict[str, Placement]:
    """Layers on the stages of every method; the ranks share the work."""
    with ranks.fail_together():
        mine = list(variants)[ranks.rank :: ranks.size]
        of_own = {name: variants[name].placement for name in mine}
    return ranks.broadcast({n: p for of_rank in ranks.gather(of_own) for n, p in of_rank.items()})


def _inputs_of(files: Experiment, variants: Iterable[Experiment]) -> dict[str, str]:
    """Checksums of samples and cost tables."""
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


def _lines(folder: Path) -> tuple[LinesFile[PlannedIteration], LinesFile[PlanningTime]]:
    return LinesFile(folder / PLANNED, PlannedIteration), LinesFile(folder / PLANNING, PlanningTime)


def _write(
    output: Path, config_toml: str, inputs: Mapping[str, str], planned: Sequence[Planned]
) -> None:
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    records_file, times_file = _lines(output)
    times = (PlanningTime(*each.record.key, each.planning_ms) for each in planned)
    files = {
        CONFIG: config_toml,
        INPUTS: json.dumps(inputs, indent=1) + "\n",
        PLANNED: "".join(records_file.line(each.record) for each in planned),
        PLANNING: "".join(map(times_file.line, times)),
    }
    with new_folder(output) as temporary:
        for name, text in files.items():
            (temporary / name).write_text(text, encoding="utf-8")


def _read(
    output: Path, config_toml: str, inputs: Mapping[str, str], keys: Sequence[tuple[str, int]]
) -> list[Planned]:
    """Reads a folder, which must hold this simulation."""
    if not (output / PLANNED).exists():
        raise InputError(f"{output}: exists, and holds no simulation; name a new folder")
    if read_text(output / CONFIG) != config_toml:
        raise InputError(
            f"{output} holds a simulation of another configuration (its {CONFIG}); name "
            "another folder, or remove this one"
        )
    try:
        stored = dict(json.loads(read_text(output / INPUTS)))
    except (ValueError, TypeError, RecursionError):
        raise InputError(f"{output / INPUTS}: is damaged; remove {output}") from None
    for name, checksum in inputs.items():
        if stored.get(name) != checksum:
            raise InputError(
                f"{output} holds a simulation with other contents of {name} (checksum "
                f"{quoted(stored.get(name))}, now {checksum}); restore them, name another "
                "folder, or remove this one"
            )
    records_file, times_file = _lines(output)
    records = [record for _, record in records_file.read()]
    times_ms = [time.planning_ms for _, time in times_file.read()]
    if [each.key for each in records] != keys or len(times_ms) != len(keys):
        raise InputError(f"{output}: its files are not complete; remove it")
    return list(map(Planned, records, times_ms))

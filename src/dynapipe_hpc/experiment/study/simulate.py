"""Whole runs of several methods, planned but not executed, and the folder of the predictions."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.atomic_write import new_folder, writing
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.study.predict import Planned, methods_of, plan_once
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.job.ranks import Ranks
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.choose.choice import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.make_plans import Planner

Choosers = Mapping[str, Callable[[CostModel, Cluster], Chooser]]
"""Functions that make the choosers of methods, by the name of the method."""

NO_CHOOSERS: Choosers = {}


def simulate(
    ranks: Ranks,
    files: Experiment,
    output: Path | None,
    on_share: Callable[[float], None] = lambda _: None,
    *,
    choosers: Choosers = NO_CHOOSERS,
) -> list[Planned]:
    """Plans all iterations of a run by every method; the ranks share them (collective).

    What is predicted does not depend on the number of ranks.

    Args:
        ranks: The processes.
        files: Files of the experiment.
        output: New folder of the simulation, see docs/formats.md, which appears when all is
            planned; None to write none.
        on_share: Callback that takes the finished share of this rank's iterations.
        choosers: Choosers of methods that no table stands for, by the name of the method.

    Returns:
        All iterations, by method, on the first rank; an empty list elsewhere.
    """
    keep_freed_memory()
    with ranks.fail_together():
        # Before the work, which may take hours.
        if ranks.is_first and output and output.exists():
            raise InputError(f"{output}: already exists; name a new folder, or remove it first")
        methods = methods_of(files.config)
        variants = {each.method: files.variant(each.applied_to(files.config)) for each in methods}
        every = list(product(variants, range(files.training.n_iterations)))
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
        if ranks.is_first and output:
            _write(output, to_toml(files.config), results)
    return results


def _placed(ranks: Ranks, variants: Mapping[str, Experiment]) -> dict[str, Placement]:
    """Layers on the stages of every method; the ranks share the work."""
    with ranks.fail_together():
        mine = list(variants)[ranks.rank :: ranks.size]
        of_own = {name: variants[name].placement for name in mine}
    return ranks.broadcast({n: p for of_rank in ranks.gather(of_own) for n, p in of_rank.items()})


def _write(output: Path, config_toml: str, planned: Sequence[Planned]) -> None:
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    times = [(*each.record.key, each.planning_ms) for each in planned]
    files = {
        "config.toml": config_toml,
        "planned.jsonl": _lines(asdict(each.record) for each in planned),
        "planning.jsonl": _lines(
            {"method": name, "iteration": k, "planning_ms": ms} for name, k, ms in times
        ),
    }
    with new_folder(output) as temporary:
        for name, text in files.items():
            (temporary / name).write_text(text, encoding="utf-8")


def _lines(records: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)

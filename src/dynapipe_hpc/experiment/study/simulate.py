"""Whole runs of several methods, planned but not executed."""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.files import ExperimentFiles
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.place_layers import place_layers
from dynapipe_hpc.experiment.run_lock import RunLock, locked
from dynapipe_hpc.experiment.study.variants import methods_of
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.job.ranks import Ranks
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.choose.choice import Choice
from dynapipe_hpc.planner.choose.chooser import Chooser
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.cost.from_config import MeasuredCosts
from dynapipe_hpc.planner.cost.table.checksum import checksum_of
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.report.planned_iteration import PlannedIteration
from dynapipe_hpc.report.simulation_folder import Planned, SimulationFolder

Choosers = Mapping[str, Callable[[CostModel, Cluster], Chooser]]
"""Functions that make the choosers of methods, by the name of the method."""

NO_CHOOSERS: Choosers = {}


@dataclass(frozen=True, slots=True)
class MethodPlanner:
    """The planner of one method.

    Attributes:
        name: Name of the method.
        planner: Planner of the method, for layers that were placed for it.
    """

    name: str
    planner: Planner

    def plan(self, iteration: int, samples: Sequence[Sample]) -> Planned:
        """Plans one iteration as a run does, as far as the bytes of all plans.

        Args:
            iteration: Number of the iteration.
            samples: Global batch, in order of arrival.

        Returns:
            What is predicted; without a plan, the reason.
        """
        started_s = time.thread_time()
        result: Choice | str
        try:
            result = self.planner.choose(samples)
            encode_plans(self.planner.write(iteration, result))
        except InputError as error:
            result = " ".join(str(error).split())
        planning_ms = 1e3 * (time.thread_time() - started_s)
        return Planned(self._record(iteration, samples, result), planning_ms)

    def _record(
        self, iteration: int, samples: Sequence[Sample], result: Choice | str
    ) -> PlannedIteration:
        best = None if isinstance(result, str) else result.best
        trip_ms = 0.0 if isinstance(result, str) else self.planner.longest_trip_ms(result, samples)
        pipelines = best.pipelines if best else ()
        microbatches = [m for pipeline in pipelines for m in pipeline.microbatches]
        peaks = (float(pipeline.timeline.peak_bytes.max()) for pipeline in pipelines)
        return PlannedIteration(
            method=self.name,
            iteration=iteration,
            samples=len(samples),
            input_tokens=sum(sample.input_tokens for sample in samples),
            target_tokens=sum(sample.target_tokens for sample in samples),
            row_tokens=sum(m.n_rows * m.row_tokens for m in microbatches),
            target_row_tokens=sum(m.n_rows * m.target_tokens for m in microbatches),
            microbatches=len(microbatches),
            makespan_ms=float(best.makespan_ms) if best else 0.0,
            iteration_ms=float(best.iteration_ms) if best else 0.0,
            longest_trip_ms=trip_ms,
            peak_bytes=max(peaks, default=0.0),
            reason=result if isinstance(result, str) else "",
        )


def simulate(
    ranks: Ranks,
    files: ExperimentFiles,
    output: Path,
    on_share: Callable[[float], None] = lambda _: None,
    *,
    choosers: Choosers = NO_CHOOSERS,
) -> list[Planned]:
    """Plans all iterations of a run by every method; the ranks share them.

    What is predicted does not depend on the number of ranks. Iterations that an earlier start in
    the same folder planned are not planned again.

    Args:
        ranks: The processes; all together.
        files: Files of the experiment.
        output: Folder of the simulation, see docs/formats.md.
        on_share: Callback that takes the finished share of this rank's iterations.
        choosers: Choosers of methods that no table stands for, by the name of the method.

    Returns:
        All iterations, by method, on the first rank; an empty list elsewhere.

    Raises:
        InputError: A file or a method cannot be used, or the folder holds something else, or is
            in use.
        RunError: The folder cannot be written.
    """
    keep_freed_memory()
    with ranks.fail_together():
        methods = methods_of(files.config)
        variants = {each.method: files.variant(each.of(files.config)) for each in methods}
    with locked(ranks, output) as lock:
        folder = SimulationFolder(output)
        return _simulate(
            ranks, files, variants, folder, lock=lock, on_share=on_share, choosers=choosers
        )


def _simulate(
    ranks: Ranks,
    files: ExperimentFiles,
    variants: Mapping[str, ExperimentFiles],
    folder: SimulationFolder,
    *,
    lock: RunLock,
    on_share: Callable[[float], None],
    choosers: Choosers,
) -> list[Planned]:
    done: dict[tuple[str, int], Planned] = {}
    is_over = False
    with ranks.fail_together():
        every = list(product(variants, range(files.training.n_iterations)))
        if ranks.is_first:
            folder.begin(to_toml(files.config), _inputs_of(files, variants.values()))
            done = folder.planned()
            is_over = folder.is_finished and done.keys() >= set(every)
            if not is_over:
                folder.gather(list(done.values()))
    missing = ranks.broadcast([key for key in every if key not in done])
    if ranks.broadcast(is_over):
        return [done[key] for key in every] if ranks.is_first else []
    with ranks.fail_together():
        placements = {
            name: place_layers(variants[name]) for name in list(variants)[ranks.rank :: ranks.size]
        }
    placed = ranks.broadcast(_union(ranks.gather(placements)))
    planners: dict[str, MethodPlanner] = {}
    with ranks.fail_together():
        own_part: list[Planned] = []
        mine = missing[ranks.rank :: ranks.size]
        for name, iteration in mine:
            samples = files.sampler.iteration(iteration)
            if name not in planners:
                planner = variants[name].planner(placed[name])
                if name in choosers:
                    by_method = choosers[name](planner.cost, planner.cluster)
                    planner = replace(planner, chooser=by_method)
                planners[name] = MethodPlanner(name, planner)
                # The first plan also makes tables of costs, which runs do once, not every time.
                planners[name].plan(iteration, samples)
            own_part.append(planners[name].plan(iteration, samples))
            if ranks.is_first:
                lock.check()
            folder.add(ranks.rank, own_part[-1])
            on_share(len(own_part) / len(mine))
    done |= {each.record.key: each for of_rank in ranks.gather(own_part) for each in of_rank}
    results = [done[key] for key in every] if ranks.is_first else []
    with ranks.fail_together():
        if ranks.is_first:
            lock.check()
            folder.end(results)
    return results


def _inputs_of(files: ExperimentFiles, variants: Iterable[ExperimentFiles]) -> dict[str, str]:
    """Checksums of the lengths of samples, and of every cost table.

    Args:
        files: Files of the experiment.
        variants: Files of every method, which may have a cost table of its own.

    Raises:
        InputError: A file cannot be used.
    """
    lengths = hashlib.blake2b(digest_size=8)
    for numbers in files.trained:
        lengths.update(np.ascontiguousarray(numbers, "<i8").data)
    checksums = {"the samples": lengths.hexdigest()}
    for costs in (variant.costs for variant in variants):
        if isinstance(costs, MeasuredCosts):
            checksums[f"the cost table {costs.config.path}"] = checksum_of(costs.table)
    return checksums


def _union(of_ranks: Sequence[dict[str, Placement]]) -> dict[str, Placement]:
    return {name: placement for each in of_ranks for name, placement in each.items()}

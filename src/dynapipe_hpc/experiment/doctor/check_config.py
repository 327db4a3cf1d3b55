"""A configuration checked against this job, its files and its memory."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.checks import RUN_CHECKS, check_costs, missing_rate
from dynapipe_hpc.experiment.doctor.check_software import circumstances_here
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.explain.describe_file import describe_room
from dynapipe_hpc.experiment.reference_pass import describe_reference
from dynapipe_hpc.experiment.split_passes import describe_halves
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.batch.memory import activation_bytes, misfit_error
from dynapipe_hpc.planner.batch.row_length import RowLengths, padded
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.store.plan_store import too_large_error


def check_config(case: Case) -> Iterator[Finding]:
    """The checks at the start of a run, then memory and a first plan; on the first rank only."""
    if not case.job.is_first or case.path is None:
        return
    if case.files is None:
        yield Finding("file", case.error, Level.PROBLEM)
        return
    files, n_ranks = case.files, case.job.size
    yield Finding("file", f"{case.path}: can be used")
    results = {name: _checked(name, partial(c, files, n_ranks)) for name, c in RUN_CHECKS.items()}
    yield from results.values()
    if not _is_problem(results["costs"]):
        yield from _circumstances(files, n_ranks)
        if halves := describe_halves(files.costs, files.config):
            yield Finding("split passes", halves)
    if any(_is_problem(results[name]) for name in ("iterations", "dataset", "evaluation", "costs")):
        return
    experiment = files.open()
    memory = list(_memory(experiment, files.rows))
    yield from memory
    if any(map(_is_problem, memory)):
        return
    yield _checked("first plan", partial(_first_plan, experiment))
    if files.config.training.preference_loss and not _is_problem(results["weights"]):
        yield _checked("reference", partial(describe_reference, experiment, case.output))


def _circumstances(files: Experiment, n_ranks: int) -> Iterator[Finding]:
    try:
        warning = check_costs(files.costs, circumstances_here(files.config, n_ranks))
    except InputError as error:
        yield Finding("costs", str(error), Level.PROBLEM)
        return
    if warning:
        yield Finding("circumstances", warning, Level.WARNING)
    if warning := missing_rate(files.config):
        yield Finding("rate of sums", warning, Level.WARNING)


def _is_problem(finding: Finding) -> bool:
    return finding.level is Level.PROBLEM


def _checked(subject: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, check())
    except (InputError, OSError) as error:
        return Finding(subject, str(error), Level.PROBLEM)


def _first_plan(experiment: Experiment) -> str:
    plans = encode_plans(experiment.planner.make_plans(0, experiment.sampler.iteration(0)))
    largest, room = max(map(len, plans)), experiment.config.store.plan_bytes
    if largest > room:
        rank = [len(plan) for plan in plans].index(largest)
        raise InputError(str(too_large_error(0, rank, largest, room)))
    return f"{largest:,} bytes of store.plan_bytes = {room:,}"


def _longest(experiment: Experiment, rows: RowLengths) -> str:
    lines = describe_room(experiment, rows).splitlines()
    n_sides = 2 if experiment.config.model.has_target_rows else 1
    return f"rows that fit, by recomputation: {'; '.join(lines[-n_sides:])}"


def _memory(experiment: Experiment, rows: RowLengths) -> Iterator[Finding]:
    yield _checked("longest", partial(_longest, experiment, rows))
    planner, cluster = experiment.config.planner, experiment.config.cluster
    cost = experiment.planner.cost.of_layout(planner.plainest_layout)
    one = np.ones(1, np.int64)
    longest = (padded(one * side.max(), planner.document_multiple) for side in rows)
    shapes = Shapes.padded(one, *longest)
    # The last mode recomputes the most, and keeps the least.
    costs = cost.stage_costs(shapes, cost.recompute_modes[-1])
    sample_bytes = activation_bytes(costs)[0]
    limit_bytes = cluster.device_memory_bytes
    if not (cost.static_bytes + sample_bytes <= limit_bytes).all():
        if experiment.config.may_slice:
            yield Finding("memory", "the longest sample alone does not fit: it runs as slices")
            return
        remedy = "lower data.max_tokens"
        error = misfit_error("the longest sample", costs, cost, cluster, way_out=remedy)
        yield Finding("memory", str(error), Level.PROBLEM)
        return
    for stage, (model, sample) in enumerate(zip(cost.static_bytes, sample_bytes, strict=True)):
        yield Finding(
            f"stage {stage}",
            f"{model / 1e6:,.1f} MB for the model and {sample / 1e6:,.1f} MB for the longest "
            f"sample, of {limit_bytes / 1e6:,.1f} MB",
        )

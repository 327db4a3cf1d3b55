"""A plan as text, shown before anything runs."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.lengths_file import Lengths, read_lengths, samples_of_lengths
from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, Recompute, tokens_held
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.checks import cost_warnings
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.plan.rank_plan import RankPlan, grid
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.row_length import check_rows
from dynapipe_hpc.planner.choose.choice import Choice, Infeasible
from dynapipe_hpc.planner.cost.cost_model import Shapes
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.lower_bound import LongestTrip, LowerBound
from dynapipe_hpc.planner.schedule.rules import name_of
from dynapipe_hpc.report.run_folder import write_atomically
from dynapipe_hpc.report.timeline import microbatch_times_ms, plan_strip, plan_svg, planned_bars

Record = dict[str, Any]


def plan_lengths(files: Experiment, lengths: Path, output: Path) -> Iterator[str]:
    """Plans every batch of a file of lengths, without the configured dataset.

    The JSON file appears when all batches are planned. Yields a warning if the costs were measured
    elsewhere, and a line per batch; an error names its batch.
    """
    yield from (f"warning: {warning}" for warning in cost_warnings(files))
    shape, multiple = files.config.model, files.config.planner.document_multiple
    batches = read_lengths(lengths, needs_targets=shape.has_target_rows)
    planner = files.planner_of(files.placement_for(batches))
    records: list[Record] = []
    with atomic_write(output) as temporary:
        for number, batch in enumerate(batches):
            try:
                check_rows(samples_of_lengths(batch), shape, multiple)
                record, bound = _plan(planner, number, batch)
            except InputError as error:
                raise InputError(f"{lengths}: batch {number}: {error}") from error
            records.append(record)
            prediction = prediction_text(record["predicted_iteration_ms"], bound)
            planned = f"planned in {record['planning_ms']:,.1f} ms"
            yield f"batch {number}: {len(batch)} samples, {prediction}, {planned}"
        content = {"lengths": lengths.name, "batches": records}
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _plan(planner: Planner, number: int, batch: Lengths) -> tuple[Record, LowerBound]:
    started_s = time.thread_time()
    samples = samples_of_lengths(batch)
    choice = planner.choose(samples)
    plans = planner.write(number, choice)
    encode_plans(plans)
    planning_ms = 1e3 * (time.thread_time() - started_s)
    bound = planner.lower_bound(choice, samples)
    record = {
        "predicted_iteration_ms": plans[0].prediction.iteration_ms,
        "planning_ms": planning_ms,
        "lower_bound_ms": bound.iteration_ms,
        "longest_trip_ms": bound.longest_trip_ms,
        "replicas": [
            {
                "makespan_ms": pipeline.timeline.makespan_ms,
                "peak_bytes": pipeline.timeline.peak_bytes.tolist(),
                "microbatches": [_microbatch(m) for m in pipeline.microbatches],
                "orders": str(pipeline.schedule).split("\n"),
            }
            for pipeline in choice.pipelines
        ],
    }
    return record, bound


def _microbatch(microbatch: MicroBatch) -> Record:
    return {
        "samples": list(microbatch.sample_ids),
        "input_tokens": microbatch.row_tokens,
        "target_tokens": microbatch.target_tokens,
        "layout": microbatch.layout.text,
        "recompute": microbatch.recompute.text,
        "slice": microbatch.slice and microbatch.slice._asdict(),
    }


N_SHOWN = 3


def what_sets_the_time(plans: Sequence[RankPlan], samples: Sequence[Sample]) -> Iterator[str]:
    """The busiest rank, and the micro-batches that take longest, each with its longest sample."""
    until_ms = plans[0].prediction.iteration_ms
    busy_ms = {
        plan.rank: sum(bar.end_ms - bar.start_ms for bar in planned_bars(plan)) for plan in plans
    }
    taken_ms = microbatch_times_ms(plans)
    rank = max(busy_ms, key=busy_ms.__getitem__)
    most_ms = busy_ms[rank]
    yield (
        f"busiest: rank {rank}, {most_ms:,.1f} of {until_ms:,.1f} ms "
        f"({100 * most_ms / until_ms:.0f} %); no order of these passes ends sooner"
    )
    length_of = {sample.sample_id: sample.tokens for sample in samples}
    of_replica = {plan.replica: plan.microbatches for plan in plans if plan.stage == 0}
    total_ms = sum(taken_ms.values())
    yield "longest micro-batches: time of all passes | share | samples | the longest of them"
    for key in sorted(taken_ms, key=taken_ms.__getitem__, reverse=True)[:N_SHOWN]:
        (replica, index), its_ms = key, taken_ms[key]
        microbatch = of_replica[replica][index]
        ids = microbatch.sample_ids
        held = {i: len(tokens_held(microbatch, i, length_of[i])) for i in ids}
        longest = max(held, key=held.__getitem__)
        of_all = f" of {length_of[longest]:,}" if held[longest] < length_of[longest] else ""
        yield (
            f"  replica {replica}, micro-batch {index}: {its_ms:,.1f} ms | "
            f"{100 * its_ms / total_ms:.1f} % | {len(ids)} | sample {longest} "
            f"({held[longest]:,}{of_all} tokens)"
        )


def show_plan(
    experiment: Experiment,
    iteration: int,
    explain: bool = False,
    *,
    timeline: bool = False,
    svg: Path | None = None,
) -> str:
    """Plans an iteration and describes it: costs, micro-batches, prediction, instructions.

    If asked, it adds the candidates, a timeline drawn in letters with what the time is used for,
    and the path of a drawing.
    """
    config, planner = experiment.config, experiment.planner
    warnings = cost_warnings(experiment)
    n_iterations = config.training.n_iterations
    if iteration >= n_iterations:
        raise InputError(
            f"--iteration {iteration}: there are {n_iterations} iterations (training.iterations); "
            "they count from 0"
        )
    samples = experiment.sampler.iteration(iteration)
    choice = planner.choose(samples)
    plans = planner.write(iteration, choice)
    bound = planner.lower_bound(choice, samples)
    if svg is not None:
        write_atomically(svg, plan_svg(plans))
    return "\n".join(
        [
            f"costs {planner.cost.describe()}",
            *(f"warning: {warning}" for warning in warnings),
            f"layers per stage {', '.join(map(str, experiment.placement.layers_per_stage))}",
            *experiment.data_lines,
            longest_rows(experiment),
            *_summary(samples, plans),
            prediction_text(plans[0].prediction.iteration_ms, bound),
            *(explain_choice(choice) if explain else ()),
            *([explain_outlier(planner.longest_trip(choice, samples))] if explain else ()),
            *_microbatches(plans),
            *_ranks(plans, choice, config.cluster),
            grid(plans),
            *((*plan_strip(plans), *what_sets_the_time(plans, samples)) if timeline else ()),
        ]
    )


def longest_rows(experiment: Experiment) -> str:
    """Tokens of the longest row that fits on every stage, per mode; in a T5, on either side."""
    config, multiple = experiment.config, experiment.config.planner.document_multiple
    cost = experiment.planner.cost.of_layout(config.planner.plainest_layout)
    inputs = np.arange(multiple, config.model.max_tokens + 1, multiple)
    targets = inputs if cost.is_encoder_decoder else np.zeros_like(inputs)
    shapes = Shapes.padded(np.ones_like(inputs), inputs, targets)
    room = activation_room_bytes(cost, config.cluster)
    fitting = {m.text: fits(cost.stage_costs(shapes, m), room) for m in cost.recompute_modes}
    longest = {mode: multiple * np.logical_and.accumulate(f).sum() for mode, f in fitting.items()}
    return f"longest row that fits: {', '.join(f'{n:,} ({mode})' for mode, n in longest.items())}"


def prediction_text(iteration_ms: float, bound: LowerBound) -> str:
    """Predicted time of an iteration, its lower bound, the gap, and what the bound rests on.

    A small gap says little if the longest sample's own trip through the stages takes most of the
    iteration, because the bound is then that trip.
    """
    gap = 100 * (iteration_ms / bound.iteration_ms - 1)
    trip = 100 * bound.longest_trip_ms / iteration_ms
    reason = f"longest sample's critical path {trip:.0f} %"
    return (
        f"predicted {iteration_ms:,.1f} ms, lower bound {bound.iteration_ms:,.1f} ms, "
        f"gap {gap:z.1f} %, {reason}"
    )


def _summary(samples: Sequence[Sample], plans: Sequence[RankPlan]) -> Iterator[str]:
    real = sum(sample.tokens for sample in samples)
    microbatches = [m for plan in plans if plan.stage == 0 for m in plan.microbatches]
    padded = sum(microbatch.padded_tokens for microbatch in microbatches)
    shapes = {(m.layout, m.n_rows, m.row_tokens, m.target_tokens) for m in microbatches}
    yield f"iteration {plans[0].iteration}: {len(samples)} samples, {real:,} real tokens"
    yield f"padding efficiency {100 * real / padded:.1f} %"
    yield f"micro-batches: {len(microbatches):,}, of different shapes and layouts: {len(shapes):,}"


def _microbatches(plans: Sequence[RankPlan]) -> Iterator[str]:
    for plan in plans:
        if plan.stage == 0:
            shapes = "  ".join(f"{i}:{_shape(m)}" for i, m in enumerate(plan.microbatches))
            yield f"replica {plan.replica}, micro-batches (rows x tokens): {shapes}"


def _shape(microbatch: MicroBatch) -> str:
    mode = microbatch.recompute
    recompute = "" if mode is Recompute.NONE else f" {mode.text}"
    targets = f"+{microbatch.target_tokens}" if microbatch.target_tokens else ""
    if isinstance(microbatch, PackedRow):
        n_samples = len(microbatch.sample_ids)
        if part := microbatch.slice:
            behind = f" and {n_samples - 1:,} samples" if n_samples > 1 else ""
            tokens = f"{part.begin:,} to {part.end:,} of sample {microbatch.sample_ids[0]}"
            return f"packed tokens {tokens}{behind}{recompute}"
        return f"packed {n_samples:,} samples, {microbatch.row_tokens:,}{targets} tokens{recompute}"
    return f"{microbatch.n_rows}x{microbatch.row_tokens}{targets}{recompute}"


def _ranks(plans: Sequence[RankPlan], choice: Choice, cluster: Cluster) -> Iterator[str]:
    """A line per rank; a rank is idle while it runs no pass, until the slowest replica ends."""
    for plan in plans:
        timeline, stage = choice.pipelines[plan.replica].timeline, plan.stage
        place = f"replica {plan.replica}, stage {stage}"
        if cluster.n_shards > 1:
            first = cluster.rank_of(plan.replica, stage)
            place += f", on ranks {first} to {first + cluster.n_shards - 1} of the job"
        busy_ms = timeline.busy_ms[stage]
        sending_ms = np.nansum(timeline.send_end_ms[stage] - timeline.send_start_ms[stage])
        yield (
            f"rank {plan.rank} ({place}): {busy_ms:,.1f} ms busy, "
            f"{choice.best.makespan_ms - busy_ms:,.1f} ms idle, {sending_ms:,.1f} ms sending, "
            f"peak {timeline.peak_bytes[stage] / 1e6:,.1f} MB of {plan.memory.limit / 1e6:,.1f} MB"
        )


def explain_choice(choice: Choice) -> Iterator[str]:
    """A header, and a line per candidate; a star marks the best."""
    width = max(len(each.way) for each in choice.tried)
    yield "candidates: way to micro-batches | makespan | highest peak | schedule of each replica"
    for each in choice.tried:
        mark = "*" if each is choice.best else " "
        if isinstance(each, Infeasible):
            outcome = f"infeasible: {each.reason}"
        else:
            peak_bytes = max(pipeline.timeline.peak_bytes.max() for pipeline in each.pipelines)
            rules = ", ".join(name_of(pipeline.rule) for pipeline in each.pipelines)
            outcome = f"{each.makespan_ms:10,.1f} ms | {peak_bytes / 1e6:10,.1f} MB | {rules}"
        yield f"{mark} {each.way:<{width}} | {outcome}"


def explain_outlier(trip: LongestTrip) -> str:
    if not trip.added_ms:
        return "outliers: no sample alone makes the iteration longer"
    return (
        f"outliers: sample {trip.sample.sample_id} ({trip.sample.tokens:,} tokens) adds "
        f"{trip.added_ms:,.1f} ms: its trip through the stages takes {trip.trip_ms:,.1f} ms, and "
        f"the average rank is busy for {trip.trip_ms - trip.added_ms:,.1f} ms"
    )

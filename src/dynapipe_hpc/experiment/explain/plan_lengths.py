"""Plans of batches of sample lengths, written as JSON for others to check."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.lengths_file import Lengths, read_lengths, samples_of_lengths
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.output_file import FileKind, check_output
from dynapipe_hpc.experiment.checks import check_costs, configured, missing_rate
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.explain.show_plan import prediction_text
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.batch.check_rows import check_rows
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.planner.schedule.lower_bound import LowerBound
from dynapipe_hpc.planner.schedule.pipeline import Pipeline

Record = dict[str, Any]


def plan_lengths(files: Experiment, lengths: Path, output: Path) -> Iterator[str]:
    """Plans every batch of a file of lengths, without the configured dataset.

    The JSON file appears when all batches are planned, and replaces former plans of lengths. Yields
    a warning if the costs were measured elsewhere, and a line about each batch; an error names it.
    """
    check_output(output, [lengths], PLANS, force=True)  # they can be planned again
    warnings = check_costs(files.costs, configured(files.config)), missing_rate(files.config)
    yield from (f"warning: {warning}" for warning in warnings if warning)
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


def _holds_plans(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.keys() == {"lengths", "batches"}


PLANS = FileKind("a file of plans", _holds_plans)


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
        "replicas": [_replica(pipeline) for pipeline in choice.pipelines],
    }
    return record, bound


def _replica(pipeline: Pipeline) -> Record:
    return {
        "makespan_ms": pipeline.timeline.makespan_ms,
        "peak_bytes": pipeline.timeline.peak_bytes.tolist(),
        "microbatches": [_microbatch(m) for m in pipeline.microbatches],
        "orders": str(pipeline.schedule).split("\n"),
    }


def _microbatch(microbatch: MicroBatch) -> Record:
    return {
        "samples": list(microbatch.sample_ids),
        "input_tokens": microbatch.row_tokens,
        "target_tokens": microbatch.target_tokens,
        "layout": microbatch.layout.text,
        "recompute": microbatch.recompute.text,
        "slice": microbatch.slice and microbatch.slice._asdict(),
    }

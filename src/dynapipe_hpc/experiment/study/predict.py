"""Variants of an experiment, and predictions for them from its dataset and costs; nothing runs."""

import csv
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from statistics import median

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import with_tables
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.job.ranks import Ranks
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.choose.choice import Choice, Chooser
from dynapipe_hpc.planner.config import EVERY_BATCH_RULE, BatchConfig, PlannerConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel
from dynapipe_hpc.planner.make_plans import Planner
from dynapipe_hpc.report.run_folder import write_atomically

ROWS_KEY, TOKENS_KEY = "rows_per_microbatch", "tokens_per_microbatch"

ROWS = tuple(2**k for k in range(7))
"""Numbers of rows per micro-batch that are tried."""

TOKENS = tuple(2.0**k for k in range(-2, 4))
"""Numbers of tokens per micro-batch that are tried, in units of data.max_tokens."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A method, and the [planner] and [cluster] tables that it has."""

    method: str
    planner: PlannerConfig
    cluster: Cluster

    @property
    def setting(self) -> int | None:
        """Rows or tokens of a micro-batch, where the variant sets them; else None."""
        setting = getattr(self.planner.batch, "setting", None)
        return setting if isinstance(setting, int) else None

    def applied_to(self, config: ExperimentConfig) -> ExperimentConfig:
        """The experiment with both tables; for another number of stages layers are placed again."""
        planner, cluster = self.planner.model_dump(exclude_none=True), self.cluster.model_dump()
        return with_tables(config, "variant", {"planner": planner, "cluster": cluster})


def methods_of(config: ExperimentConfig) -> list[Variant]:
    """The methods of the [study] table, or the configured one, named like its batch rule."""
    if not config.study.methods:
        return [Variant(config.planner.batch.rule, config.planner, config.cluster)]
    configs = {
        each.name: with_tables(
            config,
            f"study.methods, '{each.name}'",
            {"planner": each.planner, "cluster": each.cluster},
        )
        for each in config.study.methods
    }
    return [Variant(name, each.planner, each.cluster) for name, each in configs.items()]


def variants(config: ExperimentConfig) -> Iterator[Variant]:
    """Every batch rule on every division of the model over the configured number of ranks.

    The configured rule keeps its settings. Variants with several replicas use ZeRO-1.
    """
    configured = config.planner.batch
    methods: dict[str, BatchConfig] = {rule.rule: rule for rule in EVERY_BATCH_RULE}
    methods[configured.rule] = configured
    for cluster, (method, batch) in product(divisions(config.cluster), methods.items()):
        planner = config.planner.model_copy(update={"batch": batch})
        for zero_stage in (0, 1) if cluster.n_replicas > 1 else (0,):
            sharded = cluster.model_copy(update={"zero_stage": zero_stage})
            yield Variant(method, planner, sharded)


def divisions(cluster: Cluster) -> Iterator[Cluster]:
    n_ranks = cluster.n_ranks
    divisors = [n for n in range(1, n_ranks + 1) if n_ranks % n == 0]
    for n_replicas, n_stages in product(divisors, repeat=2):
        if n_ranks % (n_replicas * n_stages) == 0:
            n_shards = n_ranks // (n_replicas * n_stages)
            layout = {"n_replicas": n_replicas, "n_stages": n_stages, "n_shards": n_shards}
            yield cluster.model_copy(update=layout)


def grid(config: ExperimentConfig) -> list[Variant]:
    """Every method of the [study] table with every division and setting.

    Numbers of replicas, stages and shards are powers of two, and shards are in one node. A baseline
    that is to be tuned is planned with every setting and every single mode of recomputation, each
    for the entire run, as one would start it. Other methods choose both themselves.

    Raises:
        InputError: The number of ranks is no power of two, or a method cannot be configured.

    Source:
        Jiang et al., "DynaPipe", EuroSys 2024, doi:10.1145/3627703.3629585, section 8 (Baselines).
    """
    n_ranks, most_shards = config.cluster.n_ranks, config.study.ranks_per_node
    if n_ranks & (n_ranks - 1):
        raise InputError(
            f"[cluster] has {n_ranks} ranks (n_replicas x n_stages x n_shards), but the grid "
            "consists of powers of two; change one of them, or use dynapipe-hpc tune"
        )
    return [
        Variant(method.method, planner, cluster)
        for method in methods_of(config)
        for cluster in divisions(method.cluster)
        if cluster.n_shards <= most_shards
        for planner in _settings(method.planner, config.data.max_tokens)
    ]


def _settings(planner: PlannerConfig, longest: int) -> Iterator[PlannerConfig]:
    batch, cost = planner.batch, planner.cost
    tuned = [key for key in (ROWS_KEY, TOKENS_KEY) if getattr(batch, key, None) == "tuned"]
    if not tuned:
        yield planner
        return
    settings = ROWS if tuned == [ROWS_KEY] else [int(longest * share) for share in TOKENS]
    for mode, setting in product(cost.recompute_modes, settings):
        tables = {
            "batch": batch.model_copy(update={tuned[0]: setting}),
            "cost": cost.model_copy(update={"recompute": (mode.text,)}),
        }
        yield planner.model_copy(update=tables)


@dataclass(frozen=True, slots=True)
class PlannedIteration:
    """Predicted numbers of one iteration by one method: a line of planned.jsonl.

    docs/formats.md describes each number. Without a plan, `reason` says why, and its numbers are 0.
    """

    method: str
    iteration: int
    samples: int
    input_tokens: int
    target_tokens: int
    row_tokens: int
    target_row_tokens: int
    microbatches: int
    makespan_ms: float
    iteration_ms: float
    longest_trip_ms: float
    peak_bytes: float
    reason: str

    @property
    def key(self) -> tuple[str, int]:
        return self.method, self.iteration


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned iteration, and the processor time of planning it, from lengths to checked bytes."""

    record: PlannedIteration
    planning_ms: float


def _plan(
    planner: Planner | str, method: str, iteration: int, samples: Sequence[Sample]
) -> Planned:
    """Plans one iteration as a run does, up to the encoded bytes of all plans.

    `planner` may also be a string: the reason why there is no planner.
    """
    reason = planner if isinstance(planner, str) else ""
    choice: Choice | None = None
    started_s = time.thread_time()
    try:
        if not isinstance(planner, str):
            choice = planner.choose(samples)
            encode_plans(planner.write(iteration, choice))
    except InputError as error:
        choice, reason = None, str(error)
    planning_ms = 1e3 * (time.thread_time() - started_s)
    best, trip_ms = None, 0.0
    if choice and not isinstance(planner, str):
        best, trip_ms = choice.best, planner.longest_trip(choice, samples).trip_ms
    pipelines = best.pipelines if best else ()
    microbatches = [m for pipeline in pipelines for m in pipeline.microbatches]
    peaks = (float(pipeline.timeline.peak_bytes.max()) for pipeline in pipelines)
    record = PlannedIteration(
        method=method,
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
        reason=" ".join(reason.split()),
    )
    return Planned(record, planning_ms)


def tokens_per_s(records: Sequence[PlannedIteration]) -> float | None:
    """Real tokens per predicted second over all iterations; None if one of them has no plan."""
    if any(record.reason for record in records):
        return None
    tokens = sum(record.input_tokens + record.target_tokens for record in records)
    return 1e3 * tokens / sum(record.iteration_ms for record in records)


def real_shares(records: Sequence[PlannedIteration]) -> tuple[float, float | None]:
    """Shares of computed tokens that are real, in encoder and decoder; else in all, and None."""
    inputs, targets, rows, target_rows = (
        sum(getattr(record, name) for record in records)
        for name in ("input_tokens", "target_tokens", "row_tokens", "target_row_tokens")
    )
    if target_rows:
        return inputs / rows, targets / target_rows
    return (inputs + targets) / rows, None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A variant, with the layers of its stages and its planned iterations."""

    variant: Variant
    layers: tuple[int, ...]
    planned: tuple[Planned, ...]

    @property
    def records(self) -> list[PlannedIteration]:
        return [each.record for each in self.planned]

    @property
    def reason(self) -> str:
        """Reason why some iteration has no plan; empty if all have one."""
        failures = [record for record in self.records if record.reason]
        if not failures:
            return ""
        first = failures[0]
        if len(failures) == len(self.planned):
            return first.reason
        n = f"{len(failures):,} of {len(self.planned):,} iterations have no plan"
        return f"{n}, the first is iteration {first.iteration}: {first.reason}"

    @property
    def tokens_per_s(self) -> float:
        return tokens_per_s(self.records) or 0.0

    @property
    def iteration_ms(self) -> float:
        return median(record.iteration_ms for record in self.records)


Choosers = Mapping[str, Callable[[CostModel, Cluster], Chooser]]
"""Functions that make the choosers of methods, by the name of the method."""

NO_CHOOSERS: Choosers = {}


def predict(
    ranks: Ranks,
    files: Experiment,
    variants: Sequence[Variant],
    n_iterations: int,
    *,
    on_share: Callable[[float], None] = lambda _: None,
    choosers: Choosers = NO_CHOOSERS,
) -> list[Outcome]:
    """Plans the first iterations of an experiment in every variant; the ranks share the work.

    Args:
        ranks: The processes, which call this together.
        files: Files of the experiment.
        variants: Variants of the experiment.
        n_iterations: Number of iterations, from the first.
        on_share: Callback that takes the finished share of this rank's iterations.
        choosers: Choosers of methods that no table stands for.

    Returns:
        Outcomes in the order of `variants` on the first rank, an empty list elsewhere. Except for
        planning times, they do not depend on the number of ranks.
    """
    keep_freed_memory()
    with ranks.fail_together():
        _ = files.costs, files.sampler  # if these cannot be used, no variant has a plan
        mine = range(ranks.rank, len(variants), ranks.size)
        own_placements = {i: _placement(files, variants[i]) for i in mine}
    gathered = ranks.gather(own_placements)
    placements = ranks.broadcast({i: place for each in gathered for i, place in each.items()})
    # Ranks share variants or, if those are fewer, the iterations of each: a rank prepares few
    # planners, and many iterations of few methods are shared evenly.
    by_iteration = [range(k, k + 1) for k in range(n_iterations)]
    spans = [range(n_iterations)] if len(variants) >= n_iterations else by_iteration
    planner: Planner | str = ""
    prepared, own_parts = -1, list[tuple[int, list[Planned]]]()
    with ranks.fail_together():
        parts = list(product(range(len(variants)), spans))[ranks.rank :: ranks.size]
        for i, span in parts:
            method, batches = variants[i].method, {k: files.sampler.iteration(k) for k in span}
            if prepared != i:
                planner, prepared = _planner(files, variants[i], placements[i], choosers), i
                # The first plan also makes tables of costs, which runs do once.
                _plan(planner, method, span[0], batches[span[0]])
            own_parts.append((i, [_plan(planner, method, k, batches[k]) for k in span]))
            on_share(len(own_parts) / len(parts))
    gathered_parts = ranks.gather(own_parts)
    if not ranks.is_first:
        return []
    by_variant: list[list[Planned]] = [[] for _ in variants]
    for i, planned in chain.from_iterable(gathered_parts):
        by_variant[i] += planned
    return [
        Outcome(
            variant,
            () if isinstance(placement := placements[i], str) else placement.layers_per_stage,
            tuple(sorted(by_variant[i], key=lambda each: each.record.iteration)),
        )
        for i, variant in enumerate(variants)
    ]


def _placement(files: Experiment, variant: Variant) -> Placement | str:
    """Layers on the stages of a variant, or the reason why it cannot run."""
    try:
        return files.variant(variant.applied_to(files.config)).placement
    except InputError as error:
        return str(error)


def _planner(
    files: Experiment, variant: Variant, placement: Placement | str, choosers: Choosers
) -> Planner | str:
    """The planner of a variant, or the reason why it cannot run."""
    if isinstance(placement, str):
        return placement
    try:
        planner = files.variant(variant.applied_to(files.config)).planner_of(placement)
    except InputError as error:
        return str(error)
    if variant.method in choosers:
        chooser = choosers[variant.method](planner.cost, planner.cluster)
        return replace(planner, chooser=chooser)
    return planner


COLUMNS = (
    *("method", "replicas", "stages", "shards", "zero_stage", "setting", "recompute"),
    *("layers_per_stage", "tokens_per_s", "iteration_ms", "real_share", "decoder_share", "reason"),
)


def write_grid(path: Path, outcomes: Sequence[Outcome]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([COLUMNS, *map(_cells, outcomes)])
    write_atomically(path, text.getvalue())


def _cells(outcome: Outcome) -> tuple[str | float | None, ...]:
    variant, records = outcome.variant, outcome.records
    cluster = variant.cluster
    columns = (
        variant.method,
        cluster.n_replicas,
        cluster.n_stages,
        cluster.n_shards,
        cluster.zero_stage,
        variant.setting,
        " ".join(mode.text for mode in variant.planner.cost.recompute_modes),
        " ".join(map(str, outcome.layers)),
    )
    if outcome.reason:
        return (*columns, None, None, None, None, " ".join(outcome.reason.split()))
    return (*columns, outcome.tokens_per_s, outcome.iteration_ms, *real_shares(records), None)

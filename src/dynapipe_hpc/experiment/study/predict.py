"""Variants of an experiment, and predictions for them from its dataset and costs; nothing runs."""

import csv
import io
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from pathlib import Path

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import with_tables
from dynapipe_hpc.job.ranks import Ranks
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.plan.codec import encode_plans
from dynapipe_hpc.planner.choose.choice import Choice
from dynapipe_hpc.planner.config import EVERY_BATCH_RULE, BatchConfig, PlannerConfig
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


def grid(config: ExperimentConfig) -> list[list[Variant]]:
    """Every method of the [study] table with every division and setting.

    Numbers of replicas, stages and shards are powers of two, and shards are in one node. A baseline
    that is to be tuned is planned with every setting and every single mode of recomputation, each
    for the entire run, as one would start it. Other methods choose both themselves.

    Returns:
        Groups of variants that differ in setting and mode only, both ascending.

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
        [
            Variant(method.method, planner, cluster)
            for planner in _settings(method.planner, config.data.max_tokens)
        ]
        for method in methods_of(config)
        for cluster in divisions(method.cluster)
        if cluster.n_shards <= most_shards
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

    docs/formats.md describes each. Without a plan, `reason` says why, and its numbers are 0.
    Predictions of variants leave the longest trip 0: it would take a fortieth of planning time.
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
    """A planned iteration, and the processor time from lengths to checked bytes of all plans."""

    record: PlannedIteration
    planning_ms: float


def plan_once(planner: Planner, method: str, iteration: int, samples: Sequence[Sample]) -> Planned:
    """Plans one iteration as a run does, up to the encoded bytes of all plans."""
    started_s = time.thread_time()
    result: Choice | str
    try:
        result = planner.choose(samples)
        encode_plans(planner.write(iteration, result))
    except InputError as error:
        result = " ".join(str(error).split())
    planning_ms = 1e3 * (time.thread_time() - started_s)
    trip_ms = 0.0 if isinstance(result, str) else planner.longest_trip(result, samples).trip_ms
    record = _record(method, iteration, samples, result)
    return Planned(replace(record, longest_trip_ms=trip_ms), planning_ms)


def _record(
    method: str, iteration: int, samples: Sequence[Sample], result: Choice | str
) -> PlannedIteration:
    best = None if isinstance(result, str) else result.best
    pipelines = best.pipelines if best else ()
    microbatches = [m for pipeline in pipelines for m in pipeline.microbatches]
    peaks = (float(pipeline.timeline.peak_bytes.max()) for pipeline in pipelines)
    return PlannedIteration(
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
        longest_trip_ms=0.0,
        peak_bytes=max(peaks, default=0.0),
        reason=result if isinstance(result, str) else "",
    )


def tokens_per_s(records: Sequence[PlannedIteration]) -> float | None:
    """Real tokens per predicted second over all iterations; None if one of them has no plan."""
    if any(record.reason for record in records):
        return None
    tokens = sum(record.input_tokens + record.target_tokens for record in records)
    return 1e3 * tokens / sum(record.iteration_ms for record in records)


def real_shares(records: Sequence[PlannedIteration]) -> tuple[float, float | None]:
    """Real shares of the computed tokens: encoder and decoder; or of all tokens, and None."""
    inputs, targets, rows, target_rows = (
        sum(getattr(record, name) for record in records)
        for name in ("input_tokens", "target_tokens", "row_tokens", "target_row_tokens")
    )
    if target_rows:
        return inputs / rows, targets / target_rows
    return (inputs + targets) / rows, None


class Verdict(StrEnum):
    """Verdict on a variant; a pruned one was not planned, as others show that it is not fastest."""

    PREDICTION = "prediction"
    REFUSAL = "refusal"
    PRUNED = "pruned"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A variant, with the layers of its stages and plans of all batches, or the reason why not."""

    variant: Variant
    verdict: Verdict
    reason: str = ""
    layers: tuple[int, ...] = ()
    records: tuple[PlannedIteration, ...] = ()

    @property
    def tokens_per_s(self) -> float:
        return tokens_per_s(self.records) or 0.0

    @property
    def iteration_ms(self) -> float:
        return sum(record.iteration_ms for record in self.records) / len(self.records)

    @property
    def real_share(self) -> float:
        real = sum(record.input_tokens + record.target_tokens for record in self.records)
        return real / sum(record.row_tokens + record.target_row_tokens for record in self.records)


def predict(files: Experiment, variants: Iterable[Variant], n_batches: int) -> Iterator[Outcome]:
    """Plans the first batches of an experiment in every variant.

    In ascending order, a variant may show that a later one, which differs only in a baseline's
    setting or mode of recomputation, is not the fastest.
    """
    batches = [files.sampler.iteration(k) for k in range(n_batches)]
    known: list[Outcome] = []
    for variant in variants:
        if reason := _why_needless(variant, known):
            known.append(Outcome(variant, Verdict.PRUNED, reason))
        else:
            known.append(_predicted(files, variant, batches))
        yield known[-1]


def _why_needless(variant: Variant, known: Sequence[Outcome]) -> str:
    """Evidence that a variant is not the fastest; empty if there is none.

    In a fixed order of passes the same micro-batches take longer with more recomputation. (Other
    schedules keep within memory by waiting, which more recomputation may save.) And larger
    micro-batches keep more in memory.
    """
    setting, modes = variant.setting, variant.planner.cost.recompute_modes
    is_fixed = set(variant.planner.schedule.chosen_rules) == {"1f1b"}
    for other in known:
        two = other.variant
        its_setting, its_modes = two.setting, two.planner.cost.recompute_modes
        is_alike = (variant.method, variant.cluster) == (two.method, two.cluster)
        if setting is None or its_setting is None or not is_alike:
            continue
        fits = other.verdict is Verdict.PREDICTION and its_setting == setting
        if fits and is_fixed and its_modes < modes:
            return f"dominated: the same fits with recompute {its_modes[-1].text}"
        is_refused = other.verdict is Verdict.REFUSAL
        if is_refused and its_setting < setting and its_modes == modes:
            smaller = f"{its_setting:,} instead of {setting:,}"
            return f"larger: {smaller} cannot run either: {other.reason}"
    return ""


def _predicted(files: Experiment, variant: Variant, batches: Sequence[Sequence[Sample]]) -> Outcome:
    try:
        of_variant = files.variant(variant.applied_to(files.config))
        records = [
            _record(variant.method, k, samples, of_variant.planner.choose(samples))
            for k, samples in enumerate(batches)
        ]
    except InputError as error:
        return Outcome(variant, Verdict.REFUSAL, str(error))
    layers = of_variant.placement.layers_per_stage
    return Outcome(variant, Verdict.PREDICTION, "", layers, tuple(records))


COLUMNS = (
    *("method", "replicas", "stages", "shards", "zero_stage", "setting", "recompute"),
    *("layers_per_stage", "tokens_per_s", "iteration_ms", "real_share", "outcome", "reason"),
)


def grid_search(
    ranks: Ranks,
    files: Experiment,
    n_batches: int,
    on_share: Callable[[float], None] = lambda _: None,
) -> list[Outcome]:
    """Plans the first batches at every point of a grid; the ranks share its groups (collective).

    Returns the outcome of every point, in the order of the grid, on the first rank, and an empty
    list elsewhere. Outcomes do not depend on the number of ranks.
    """
    with ranks.fail_together():
        groups = grid(files.config)
        mine = list(enumerate(groups))[ranks.rank :: ranks.size]
        outcomes_by_group: dict[int, list[Outcome]] = {}
        for index, group in mine:
            outcomes_by_group[index] = list(predict(files, group, n_batches))
            on_share(len(outcomes_by_group) / len(mine))
    of_all = {
        i: outcomes for each in ranks.gather(outcomes_by_group) for i, outcomes in each.items()
    }
    return [outcome for index in sorted(of_all) for outcome in of_all[index]]


def predictions(outcomes: Sequence[Outcome]) -> list[Outcome]:
    results = [each for each in outcomes if each.verdict is Verdict.PREDICTION]
    return sorted(results, key=lambda each: -each.tokens_per_s)


def write_grid(path: Path, outcomes: Sequence[Outcome]) -> None:
    write_atomically(path, _csv([COLUMNS, *map(_cells, outcomes)]))


def _csv(rows: Sequence[Sequence[str | float]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cells(outcome: Outcome) -> tuple[str | float, ...]:
    variant = outcome.variant
    cluster = variant.cluster
    columns = (
        variant.method,
        cluster.n_replicas,
        cluster.n_stages,
        cluster.n_shards,
        cluster.zero_stage,
        variant.setting or "",
        " ".join(mode.text for mode in variant.planner.cost.recompute_modes),
    )
    numbers: tuple[str | float, ...] = ("", "", "")
    if outcome.records:
        numbers = (outcome.tokens_per_s, outcome.iteration_ms, outcome.real_share)
    layers, reason = " ".join(map(str, outcome.layers)), " ".join(outcome.reason.split())
    return (*columns, layers, *numbers, outcome.verdict, reason)

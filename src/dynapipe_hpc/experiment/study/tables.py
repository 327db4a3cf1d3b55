"""Predictions as tables, fastest first, and the reasons why some variants have none."""

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from dynapipe_hpc.experiment.study.predict import (
    Outcome,
    Planned,
    Variant,
    Verdict,
    predictions,
    real_shares,
    tokens_per_s,
)

_OF_VARIANTS = ("tokens/s", "iteration", "of best", "real")
_OF_METHODS = ("tokens/s", "of best", "iteration", "quartiles", "critical path", "real", "decoder")
_OF_PLANNING = ("planning", "ratio")


def describe_tuning(outcomes: Sequence[Outcome]) -> Iterator[str]:
    results = predictions(outcomes)
    yield from _of_variants(results)
    if any(each.variant.planner.batch.rule == "dense_packing" for each in results):
        yield "note: with dense_packing, the samples of a row attend to each other"
    refused: dict[str, list[Variant]] = {}
    for outcome in outcomes:
        if outcome.verdict is Verdict.REFUSAL:
            refused.setdefault(outcome.reason, []).append(outcome.variant)
    for reason, variants in refused.items():
        first = f"{variants[0].method} on {_ranks_text(variants[0])}"
        yield f"cannot run: {len(variants):,} of {len(outcomes):,}, the first {first}: {reason}"


def describe_grid(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Lines of a table with the best variant of every method, and counts of all variants."""
    every = predictions(outcomes)
    best = {each.variant.method: each for each in reversed(every)}
    yield from _of_variants([each for each in every if each is best[each.variant.method]])
    for method in dict.fromkeys(outcome.variant.method for outcome in outcomes):
        of_method = [outcome for outcome in outcomes if outcome.variant.method == method]
        refused = [each for each in of_method if each.verdict is Verdict.REFUSAL]
        n_pruned = sum(each.verdict is Verdict.PRUNED for each in of_method)
        n_predicted = len(of_method) - n_pruned - len(refused)
        counts = f"{n_predicted:,} planned, {len(refused):,} cannot run, {n_pruned:,} needless"
        yield f"{method}: {len(of_method):,} points: {counts}"
        if not n_predicted:
            yield f"{method}: cannot run: {refused[0].reason}"


def describe_simulation(planned: Sequence[Planned]) -> Iterator[str]:
    """Lines of a table, in the order of methods, and the reasons of iterations without a plan.

    The critical path is the share of an iteration that the longest sample alone takes.
    Tokens per second are all real tokens over the sum of predicted times, as in the paper. Methods
    that cannot plan every iteration have none, as their samples would not be the same.
    """
    of_method: dict[str, list[Planned]] = {}
    for each in planned:
        of_method.setdefault(each.record.method, []).append(each)
    yield f"simulated, {len(planned) // max(1, len(of_method)):,} iterations; nothing was run:"
    rates = {name: tokens_per_s([each.record for each in of]) for name, of in of_method.items()}
    best = max((rate for rate in rates.values() if rate), default=None)
    feasible = {name: [e for e in of if not e.record.reason] for name, of in of_method.items()}
    rows = [(*_cells(of, rates[name], best), name) for name, of in feasible.items() if of]
    yield from _aligned([(*_OF_METHODS, *_OF_PLANNING, "method"), *rows], n_left=1)
    for name, every in of_method.items():
        reasons = [each.record for each in every if each.record.reason]
        if reasons:
            failure = f"no plan of {len(reasons):,} of {len(every):,} iterations"
            first = f"the first is iteration {reasons[0].iteration}: {reasons[0].reason}"
            yield f"{name}: {failure}, {first}"


def _of_variants(results: Sequence[Outcome]) -> Iterator[str]:
    if not results:
        return
    yield "predicted, fastest first; ranks are replicas x stages x shards:"
    rows = [(*_OF_VARIANTS, "method", "ranks", "ZeRO", "layers per stage")]
    for each in results:
        variant, layers = each.variant, ", ".join(map(str, each.layers))
        setting = _setting_text(variant)
        rows.append(
            (
                f"{each.tokens_per_s:,.0f}",
                f"{each.iteration_ms:,.1f} ms",
                f"{each.tokens_per_s / results[0].tokens_per_s:.3f}",
                f"{each.real_share:.2f}",
                variant.method,
                _ranks_text(variant),
                str(variant.cluster.zero_stage),
                f"{layers}; {setting}" if setting else layers,
            )
        )
    yield from _aligned(rows, n_left=4)


def _cells(planned: Sequence[Planned], rate: float | None, best: float | None) -> tuple[str, ...]:
    records = [each.record for each in planned]
    times_ms = [record.iteration_ms for record in records]
    real, decoder = real_shares(records)
    low, high = np.quantile(times_ms, (0.25, 0.75))
    return (
        f"{rate:,.0f}" if rate else "-",
        f"{rate / best:.3f}" if rate and best else "-",
        f"{median(times_ms):,.1f} ms",
        f"{low:,.1f} to {high:,.1f} ms",
        f"{median(r.longest_trip_ms / r.iteration_ms for r in records):.3f}",
        f"{real:.3f}",
        "-" if decoder is None else f"{decoder:.3f}",
        f"{median(each.planning_ms for each in planned):,.1f} ms",
        f"{median(each.planning_ms / each.record.iteration_ms for each in planned):.4f}",
    )


def _aligned(rows: Sequence[Sequence[str]], *, n_left: int) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    n_right = len(widths) - n_left
    for row in rows:
        right = [cell.rjust(width) for cell, width in zip(row[:n_right], widths, strict=False)]
        left = [cell.ljust(w) for cell, w in zip(row[n_right:], widths[n_right:], strict=True)]
        yield " " + "  ".join([*right, *left]).rstrip()


def _setting_text(variant: Variant) -> str:
    if variant.setting is None:
        return ""
    what = "rows" if hasattr(variant.planner.batch, "rows_per_microbatch") else "tokens"
    modes = ", ".join(mode.text for mode in variant.planner.cost.recompute_modes)
    return f"{variant.setting:,} {what}, recompute {modes}"


def _ranks_text(variant: Variant) -> str:
    cluster = variant.cluster
    return f"{cluster.n_replicas} x {cluster.n_stages} x {cluster.n_shards}"

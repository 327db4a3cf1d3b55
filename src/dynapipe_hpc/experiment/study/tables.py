"""Predictions as a table, fastest first, and the reasons why some variants have none."""

from collections.abc import Iterator, Sequence
from statistics import median

from dynapipe_hpc.experiment.study.predict import Outcome, Variant, real_shares

_RIGHT = ("tokens/s", "of best", "iteration", "critical path", "real", "decoder", "planning")
_LEFT = ("method", "ranks", "ZeRO", "layers per stage")


def describe(outcomes: Sequence[Outcome], *, only_best: bool = False) -> Iterator[str]:
    """Lines of a table of variants, or of the best variant of every method; and what cannot run.

    The critical path is the share of an iteration that the longest sample alone takes. Tokens per
    second are all real tokens over the sum of predicted times, as in the paper. Variants that
    cannot plan every iteration have no such number, as their samples would not be the same.
    """
    results = sorted((o for o in outcomes if not o.reason), key=lambda each: -each.tokens_per_s)
    if only_best:
        best = {each.variant.method: each for each in reversed(results)}
        results = [each for each in results if each is best[each.variant.method]]
    if results:
        n_iterations = len(outcomes[0].planned)
        yield f"predicted, {n_iterations:,} iterations; ranks are replicas x stages x shards:"
        rows = [(*_RIGHT, *_LEFT), *(_cells(each, results[0].tokens_per_s) for each in results)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        n = len(_RIGHT)
        for row in rows:
            right = [cell.rjust(width) for cell, width in zip(row[:n], widths, strict=False)]
            left = [cell.ljust(w) for cell, w in zip(row[n:], widths[n:], strict=True)]
            yield " " + "  ".join([*right, *left]).rstrip()
    if any(each.variant.planner.batch.rule == "dense_packing" for each in results):
        yield "note: with dense_packing, the samples of a row attend to each other"
    for method in dict.fromkeys(outcome.variant.method for outcome in outcomes):
        of_method = [outcome for outcome in outcomes if outcome.variant.method == method]
        refused = [outcome for outcome in of_method if outcome.reason]
        if refused:
            n_refused = f"{len(refused):,} of {len(of_method):,}"
            first, setting = refused[0], _setting_text(refused[0].variant)
            place = _ranks_text(first.variant) + f" with {setting}" * bool(setting)
            yield f"{method}: cannot run: {n_refused}, the first on {place}: {first.reason}"


def _cells(outcome: Outcome, best: float) -> tuple[str, ...]:
    variant, records = outcome.variant, outcome.records
    real, decoder = real_shares(records)
    layers, setting = ", ".join(map(str, outcome.layers)), _setting_text(variant)
    return (
        f"{outcome.tokens_per_s:,.0f}",
        f"{outcome.tokens_per_s / best:.3f}",
        f"{outcome.iteration_ms:,.1f} ms",
        f"{median(record.longest_trip_ms / record.iteration_ms for record in records):.3f}",
        f"{real:.3f}",
        "-" if decoder is None else f"{decoder:.3f}",
        f"{median(each.planning_ms for each in outcome.planned):,.1f} ms",
        variant.method,
        _ranks_text(variant),
        str(variant.cluster.zero_stage),
        f"{layers}; {setting}" if setting else layers,
    )


def _setting_text(variant: Variant) -> str:
    if variant.setting is None:
        return ""
    what = "rows" if hasattr(variant.planner.batch, "rows_per_microbatch") else "tokens"
    modes = ", ".join(mode.text for mode in variant.planner.cost.recompute_modes)
    return f"{variant.setting:,} {what}, recompute {modes}"


def _ranks_text(variant: Variant) -> str:
    cluster = variant.cluster
    return f"{cluster.n_replicas} x {cluster.n_stages} x {cluster.n_shards}"

"""Predictions for the variants of an experiment, as a table."""

from collections.abc import Iterator, Sequence

from dynapipe_hpc.experiment.study.predict import Outcome, Pruned, Refusal, VariantPrediction
from dynapipe_hpc.experiment.study.variants import Variant

_COLUMNS = "{:>10} {:>9} {:>7} {:>6}  {:<{}} {:<11} {:>4}  {}"
_NARROWEST = 16


def describe_tuning(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Lines of a table, fastest first, and the reasons why the other variants cannot run."""
    results = predictions(outcomes)
    yield from _table(results)
    if any(each.variant.batch.rule == "dense_packing" for each in results):
        yield "note: with dense_packing, the samples of a row attend to each other"
    refused: dict[str, list[Variant]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Refusal):
            refused.setdefault(outcome.reason, []).append(outcome.variant)
    every = [outcome.variant for outcome in outcomes]
    for reason, variants in refused.items():
        yield f"cannot run: {_grouped(variants, every)}: {reason}"


def describe_grid(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Lines of a table with the best variant of every method, and how many others there were."""
    every = predictions(outcomes)
    best = {each.variant.method: each for each in reversed(every)}
    yield from _table([each for each in every if each is best[each.variant.method]])
    for method in dict.fromkeys(outcome.variant.method for outcome in outcomes):
        of_method = [outcome for outcome in outcomes if outcome.variant.method == method]
        refused = [each for each in of_method if isinstance(each, Refusal)]
        n_pruned = sum(isinstance(each, Pruned) for each in of_method)
        n_predicted = len(of_method) - n_pruned - len(refused)
        counts = f"{n_predicted:,} planned, {len(refused):,} cannot run, {n_pruned:,} needless"
        yield f"{method}: {len(of_method):,} points: {counts}"
        if not n_predicted:
            yield f"{method}: cannot run: {refused[0].reason}"


def predictions(outcomes: Sequence[Outcome]) -> list[VariantPrediction]:
    """The predictions, fastest first."""
    results = [each for each in outcomes if isinstance(each, VariantPrediction)]
    return sorted(results, key=lambda each: -each.tokens_per_s)


def setting_text(variant: Variant) -> str:
    """Rows or tokens of a micro-batch and modes of recomputation, where a variant sets them."""
    if variant.setting is None:
        return ""
    what = "rows" if hasattr(variant.batch, "rows_per_microbatch") else "tokens"
    modes = ", ".join(mode.text for mode in variant.planner.cost.recompute_modes)
    return f"{variant.setting:,} {what}, recompute {modes}"


def _table(results: Sequence[VariantPrediction]) -> Iterator[str]:
    if not results:
        return
    yield "predicted, fastest first; ranks are replicas x stages x shards:"
    width = max(_NARROWEST, *(len(each.variant.method) for each in results))
    yield _COLUMNS.format(
        "tokens/s",
        "iteration",
        "of best",
        "real",
        "method",
        width,
        "ranks",
        "ZeRO",
        "layers per stage",
    )
    for each in results:
        layers = ", ".join(map(str, each.placement.layers_per_stage))
        setting = setting_text(each.variant)
        method, *of_cluster = _columns_of(each.variant)
        yield _COLUMNS.format(
            f"{each.tokens_per_s:,.0f}",
            f"{each.iteration_ms:,.1f} ms",
            f"{each.tokens_per_s / results[0].tokens_per_s:.3f}",
            f"{each.real_share:.2f}",
            method,
            width,
            *of_cluster,
            f"{layers}; {setting}" if setting else layers,
        )


def _columns_of(variant: Variant) -> tuple[str, str, str]:
    cluster = variant.cluster
    ranks = f"{cluster.n_replicas} x {cluster.n_stages} x {cluster.n_shards}"
    return variant.method, ranks, str(cluster.zero_stage)


def _grouped(variants: Sequence[Variant], every: Sequence[Variant]) -> str:
    """Variants in words: methods on the same divisions of ranks together.

    Args:
        variants: The variants.
        every: All variants, of which they are some.
    """
    n_methods = len({variant.method for variant in every})
    n_divisions = len({_division(variant) for variant in every})
    divisions: dict[str, list[str]] = {}
    for variant in variants:
        divisions.setdefault(variant.method, []).append(_division(variant))
    methods: dict[tuple[str, ...], list[str]] = {}
    for method, of_method in divisions.items():
        methods.setdefault(tuple(dict.fromkeys(of_method)), []).append(method)
    return "; ".join(
        f"{'all methods' if len(names) == n_methods else ', '.join(names)} on "
        f"{'all divisions' if len(on) == n_divisions else ', '.join(on)}"
        for on, names in methods.items()
    )


def _division(variant: Variant) -> str:
    _, ranks, zero_stage = _columns_of(variant)
    return ranks + (f" ZeRO-{zero_stage}" if zero_stage != "0" else "")

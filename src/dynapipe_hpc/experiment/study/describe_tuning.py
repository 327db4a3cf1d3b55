"""Predictions for the variants of an experiment, as a table."""

from collections.abc import Iterator, Sequence

from dynapipe_hpc.experiment.study.tune import Prediction, Refusal
from dynapipe_hpc.experiment.study.variants import Variant

_COLUMNS = "{:>10} {:>9} {:>7} {:>6}  {:<16} {:<11} {:>4}  {}"


def describe_tuning(outcomes: Sequence[Prediction | Refusal]) -> Iterator[str]:
    """Lines of a table, fastest first, and the reasons why the other variants cannot run."""
    found = [each for each in outcomes if isinstance(each, Prediction)]
    found.sort(key=lambda each: -each.tokens_per_s)
    if found:
        yield "predicted, fastest first; ranks are replicas x stages x shards:"
        yield _COLUMNS.format(
            "tokens/s",
            "iteration",
            "of best",
            "real",
            "batch rule",
            "ranks",
            "ZeRO",
            "layers per stage",
        )
    for each in found:
        yield _COLUMNS.format(
            f"{each.tokens_per_s:,.0f}",
            f"{each.iteration_ms:,.1f} ms",
            f"{each.tokens_per_s / found[0].tokens_per_s:.3f}",
            f"{each.real_share:.2f}",
            *_columns_of(each.variant),
            ", ".join(map(str, each.placement.layers_per_stage)),
        )
    if any(each.variant.batch.rule == "dense_packing" for each in found):
        yield "note: with dense_packing, the samples of a row attend to each other"
    refused: dict[str, list[str]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Refusal):
            refused.setdefault(outcome.reason, []).append(_name(outcome.variant))
    for reason, names in refused.items():
        yield f"cannot run: {'; '.join(names)}: {reason}"


def _columns_of(variant: Variant) -> tuple[str, str, str]:
    cluster = variant.cluster
    ranks = f"{cluster.n_replicas} x {cluster.n_stages} x {cluster.n_shards}"
    return variant.batch.rule, ranks, str(cluster.zero_stage)


def _name(variant: Variant) -> str:
    rule, ranks, zero_stage = _columns_of(variant)
    return f"{rule} {ranks}" + (f" ZeRO-{zero_stage}" if zero_stage != "0" else "")

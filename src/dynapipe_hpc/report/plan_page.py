"""The plan of an iteration as one self-contained HTML file."""

from collections.abc import Iterator, Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from dynapipe_hpc.data.microbatch import MicroBatch, tokens_held
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.report.timeline import microbatch_times_ms, plan_svg

COLUMNS = (
    "replica",
    "micro-batch",
    "layout",
    "rows",
    "tokens of a row",
    "samples",
    "real",
    "longest sample",
    "recompute",
    "passes",
)


def plan_page(
    plans: Sequence[RankPlan], samples: Sequence[Sample], texts: Mapping[str, Sequence[str]]
) -> str:
    """A page with the drawing of a plan, texts by title, and a table of its micro-batches."""
    real_tokens = sum(sample.tokens for sample in samples)
    first_stages = [plan for plan in plans if plan.stage == 0]
    padded_tokens = sum(m.padded_tokens for plan in first_stages for m in plan.microbatches)
    return page_template("plan.html").render(
        iteration=plans[0].iteration,
        iteration_ms=plans[0].prediction.iteration_ms,
        n_samples=len(samples),
        real_tokens=real_tokens,
        efficiency=100 * real_tokens / padded_tokens,
        svg=plan_svg(plans),
        texts=[(title, lines) for title, lines in texts.items() if lines],
        columns=COLUMNS,
        rows=[*_rows(plans, {sample.sample_id: sample.tokens for sample in samples})],
    )


def _rows(plans: Sequence[RankPlan], length_of: Mapping[int, int]) -> Iterator[tuple[str, ...]]:
    took_ms = microbatch_times_ms(plans)
    for plan in plans:
        for i, microbatch in enumerate(plan.microbatches if plan.stage == 0 else ()):
            cells = _cells(microbatch, length_of)
            yield f"{plan.replica}", f"{i}", *cells, f"{took_ms[plan.replica, i]:,.1f} ms"


def _cells(microbatch: MicroBatch, length_of: Mapping[int, int]) -> tuple[str, ...]:
    lengths = [len(tokens_held(microbatch, i, length_of[i])) for i in microbatch.sample_ids]
    targets = f" + {microbatch.target_tokens:,}" if microbatch.target_tokens else ""
    return (
        microbatch.layout.text + (" slice" if microbatch.slice else ""),
        f"{microbatch.n_rows:,}",
        f"{microbatch.row_tokens:,}{targets}",
        f"{len(lengths):,}",
        f"{100 * sum(lengths) / microbatch.padded_tokens:.0f} %",
        f"{max(lengths):,}",
        microbatch.recompute.text,
    )


def page_template(name: str) -> Template:
    """The template of a page, by the name of its file; unknown names in it are errors."""
    environment = Environment(
        loader=PackageLoader("dynapipe_hpc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)

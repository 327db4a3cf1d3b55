"""Number of shapes of packed micro-batches, and the cost of having few.

    python benchmarks/shapes.py [FOLDER] [--json OUT.json]

FOLDER (default ../shared) holds the inputs, see a100_inputs.py. The plans are those of layouts.py
for the 16-layer GPT on 4 stages and one replica and the 32-layer one on two, of 65,536 tokens an
iteration, all packed, by `planner.batch.token_multiple`, with whole backward passes. `ratio` is
the predicted time over that with multiples of 8, the geometric mean of a class, `worst` its
largest; `shapes` is the number of different shapes in all its iterations together, `most` what it
can be at most; `planning` is the median of the processor time of one thread in ms, from lengths to
the checked plans. The effort of the search is the default.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean, median

from a100_inputs import batches
from layouts import Row, Size, planned, planner_of
from measured import run_over_inputs

MULTIPLES = (8, 32, 128, 256, 512, 1024, 2048)
TOKENS = 65536
SIZES = (Size(16, n_replicas=1), Size(32, n_replicas=2))
COLUMNS = {
    "ratio": "{:.4f}",
    "worst": "{:.4f}",
    "shapes": "{:,.0f}",
    "most": "{:,.0f}",
    "planning": "{:.1f}",
}


def measured_classes(folder: Path) -> Iterator[tuple[str, Row]]:
    """Name and numbers of every class and multiple."""
    for size in SIZES:
        for longest in (2048, 8192):
            iterations = batches(folder, f"gpt_max{longest}_gbs{TOKENS}")
            plain_ms: list[float] = []
            for multiple in MULTIPLES:
                planner = planner_of(
                    folder, "gpt", size, ("packed",), split=False, token_multiple=multiple
                )
                found = [planned(planner, samples) for samples in iterations]
                times_ms = [plans[0].prediction.iteration_ms for plans, _ in found]
                plain_ms = plain_ms or times_ms
                ratios = [one / plain for one, plain in zip(times_ms, plain_ms, strict=True)]
                rows = {m.row_tokens for plans, _ in found for p in plans for m in p.microbatches}
                yield (
                    f"max{longest} x{size.n_replicas} {multiple}",
                    {
                        "ratio": geometric_mean(ratios),
                        "worst": max(ratios),
                        "shapes": len(rows),
                        "most": -(-TOKENS // multiple),
                        "planning": median(planning_ms for _, planning_ms in found),
                    },
                )


def measure_all(folder: Path) -> dict[str, Row]:
    return dict(measured_classes(folder))


if __name__ == "__main__":
    run_over_inputs(__doc__, measure_all, COLUMNS)

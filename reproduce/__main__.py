"""Makes all figures, their page, and docs/claims.md.

    mpiexec -n 2 python -m reproduce [FOLDER] [-o OUTPUT] [--claims docs/claims.md]

FOLDER (default ../shared) holds profiles/ with layers that the paper's authors measured, see
benchmarks/a100_inputs.py. Ranks share the simulations.
"""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.verb import open_ranks
from dynapipe_hpc.report.run_folder import write_atomically
from reproduce import (
    ablations,
    best_division,
    bound_gaps,
    efficiency,
    ingredients,
    large_batches,
    layer_time,
    long_tails,
    methods,
    ordering,
    packing,
    planning_time,
    scaling,
    store_growth,
    variation,
)
from reproduce.page import claims_text, write_page
from reproduce.studies import Studies


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("inputs", type=Path, nargs="?", default=Path("../shared"))
    parser.add_argument("-o", "--output", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--claims", type=Path)
    arguments = parser.parse_args()
    with open_ranks() as ranks:
        output = arguments.output / "simulations"
        studies = Studies(ranks, arguments.inputs, output, methods.CHOOSERS)
        points = best_division.simulate_all(studies)
        ablated = ablations.simulate_all(studies)
        parted = ingredients.simulate_all(studies)
        scaled = scaling.simulate_all(studies)
        if not ranks.is_first:
            return
        every = [
            layer_time.figure(arguments.inputs),
            variation.figure(),
            *packing.figures(points),
            efficiency.figure(points),
            ablations.microbatching(ablated),
            ablations.schedules(ablated),
            ordering.figure(studies),
            *ingredients.figures(parted),
            bound_gaps.figure(),
            planning_time.figure(points),
            large_batches.figure(),
            long_tails.figure(),
            *scaling.figures(scaled),
            store_growth.figure(),
        ]
        print(write_page(arguments.output, every))
        if arguments.claims:
            write_atomically(arguments.claims, claims_text(every))


if __name__ == "__main__":
    main()

"""A study of dynapipe-hpc with the planner of the paper's authors beside its methods.

python -m reproduce.as_published configs/studies/packing.toml -o studies/published
"""

import argparse
from pathlib import Path

from dynapipe_hpc.cli.verb import open_ranks
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config, with_tables
from dynapipe_hpc.experiment.study.simulate import simulate
from dynapipe_hpc.experiment.study.tables import describe
from reproduce import methods


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    with open_ranks() as ranks:
        config = load_config(arguments.config)
        every = [*config.study.model_dump(exclude_none=True)["methods"], methods.published()]
        files = Experiment(with_tables(config, "study", {"study": {"methods": every}}))
        outcomes = simulate(ranks, files, arguments.output, choosers=methods.CHOOSERS)
        if ranks.is_first:
            print(*describe(outcomes), sep="\n")


if __name__ == "__main__":
    main()

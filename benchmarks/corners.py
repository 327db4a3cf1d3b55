"""Corners of a cost table as they follow from their neighbours, against what was measured there.

    python benchmarks/corners.py TABLE.h5 [TABLE.h5 ...]

Costs beyond the largest measured micro-batches are products of their neighbours'
(`planner/cost/corners.py`). Inside a table, every point of at least 8,192 tokens can be left out
and told in the same way. Shares are of the measured times, forward and backward together, after
the repair of noise: the median over points, and the tenth and the ninetieth percentile.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np

from dynapipe_hpc.planner.cost.monotone import make_monotone

MIN_TOKENS = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", type=Path, nargs="+", metavar="TABLE.h5")
    for path in parser.parse_args().tables:
        with h5py.File(path) as file:
            for key, layer in layers(file["layers/tensor_parallel=1"]):
                low, middle, high = np.quantile(errors(layer), [0.1, 0.5, 0.9])
                print(f"{path.stem}  {key:40} {middle:6.1%}  {low:6.1%} to {high:6.1%}")


def layers(modes: h5py.Group) -> Iterator[tuple[str, h5py.Group]]:
    for mode, kinds in modes.items():
        for kind in ("layer", "head"):
            if kind in kinds:
                yield f"{mode}, {kind}", kinds[kind]


def errors(layer: h5py.Group) -> list[float]:
    """Errors of all corners that were measured, as shares."""
    ms = make_monotone(layer["forward_ms"][:] + layer["backward_ms"][:]).grid
    tokens = np.outer(layer["rows"][:], layer["row_tokens"][:])
    inside = np.isfinite(ms[1:, 1:]) & (tokens[1:, 1:] >= MIN_TOKENS)
    told = ms[:-1, 1:][inside] * ms[1:, :-1][inside] / ms[:-1, :-1][inside]
    return list(told / ms[1:, 1:][inside] - 1)


if __name__ == "__main__":
    main()

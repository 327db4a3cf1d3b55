"""Errors of predicted times of slices and packed rows of random composition, on one layer.

    python benchmarks/composition_costs.py [--json OUT.json]

A profile of a small Llama on one processor core, then passes of a stage of one layer over slices of
random length behind random numbers of tokens, and over packed rows of random documents, each
repeated in turn with the others. An error is |predicted - measured| / measured of both passes
together. "equal rows" looks a packed row up as equal rows with as many tokens and pairs;
"tokens and pairs" as a row of its own with as many tokens, plus or minus the time of the pairs.
"derived" takes that time from rows of unequal lengths, "measured" from slices. "beyond the table"
counts rows between points of which one was not measured; they have no error.

The speed of a machine changes between a profile and what follows, so predictions are scaled by what
rows of one sample, measured in the same rounds, take now: "scale". "slices over a row" is the time
of a sample's passes as slices over those as one row. It takes about ten minutes.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from mpi4py import MPI

from dynapipe_hpc.data.microbatch import Layout, PackedRow, Recompute, Slice
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.place_layers import any_placement
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.profile import profile
from dynapipe_hpc.experiment.profile.stack import (
    Stack,
    StackShape,
    equal_slices,
    tokens_on_disk,
)
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.planner.batch.packed_shapes import shapes_of
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes
from dynapipe_hpc.planner.cost.profiled import profiled_cost
from dynapipe_hpc.planner.cost.table.profile_table import ProfileTable
from measured import print_table, write_json

MAX_TOKENS = 4096
N_COMPOSITIONS = 24
N_REPEATS = 5
N_SLICES = 8
LENGTHS = [MAX_TOKENS >> k for k in range(5)]
DOCUMENT_TOKENS = (16, MAX_TOKENS // 2)
MIDDLE_STAGE = 1  # holds one layer, and neither embedding nor head


def experiment(recompute: Recompute) -> ExperimentConfig:
    """Three stages of one layer each, whose middle one is measured."""
    return ExperimentConfig.model_validate(
        {
            "data": {
                "dataset": "none.h5",
                "max_tokens": MAX_TOKENS,
                "tokens_per_batch": 4 * MAX_TOKENS,
            },
            "model": {
                "family": "llama",
                "n_layers": 3,
                "hidden_size": 128,
                "n_heads": 2,
                "n_kv_heads": 1,
                "ffn_size": 384,
                "vocab_size": 257,
                "max_tokens": MAX_TOKENS,
            },
            "cluster": {"n_stages": 3, "device_memory_bytes": "8GB"},
            "planner": {
                "cost": {"kind": "profiled", "path": "none.h5", "recompute": [recompute.text]},
                "batch": {"rule": "dynamic", "layouts": ["packed"], "slices": "auto"},
                "schedule": {"split_backward": False},
            },
            "training": {"iterations": 1, "learning_rate": 1e-3},
        }
    )


def measured_table(config: ExperimentConfig) -> ProfileTable:
    """The profile of this machine, one rank."""
    grid = ProfileGrid.from_config(config, 2 * MAX_TOKENS)
    job = Job(MPI.COMM_SELF)
    *_, table = profile(job, config, grid, repetition_s=20.0, on_progress=lambda _: None)
    if table is None:
        raise RuntimeError("the first rank has a table")
    return table


def cost_of(table: ProfileTable, config: ExperimentConfig) -> CostModel:
    """Costs by a table, of packed rows."""
    modes = {key.recompute for key in table.layers}
    used = ProfiledConfig(path=Path("none.h5"), recompute=tuple(modes))
    cost = profiled_cost(table, config.model, any_placement(config), config.cluster, config=used)
    return cost.of_layout(Layout.PACKED)


def random_slices(draw: np.random.Generator, recompute: Recompute) -> Iterator[list[PackedRow]]:
    """Pairs of a slice of all earlier tokens, if there are some, and a slice behind it."""
    for _ in range(N_COMPOSITIONS):
        n_tokens = 8 * int(draw.integers(32, MAX_TOKENS // 16))
        begin = 8 * int(draw.integers((MAX_TOKENS - n_tokens) // 8 + 1))
        end = begin + n_tokens
        bounds = [(0, begin), (begin, end)] if begin else [(0, end)]
        yield [
            PackedRow((0,), b - a, (0, b - a), recompute, slice=Slice(a, b, MAX_TOKENS))
            for a, b in bounds
        ]


def random_rows(draw: np.random.Generator, recompute: Recompute) -> Iterator[PackedRow]:
    """Packed rows of documents whose lengths' logarithms are uniform."""
    low, high = np.log(DOCUMENT_TOKENS)
    for _ in range(N_COMPOSITIONS):
        limit = int(draw.integers(512, MAX_TOKENS))
        lengths: list[int] = []
        while sum(lengths) < limit:
            longest = limit - sum(lengths)
            lengths.append(min(longest, int(np.exp(draw.uniform(low, high)))))
        offsets = (0, *accumulate(lengths))
        # A document is the beginning of a sample of its length.
        yield PackedRow(tuple(lengths), 8 * -(-offsets[-1] // 8), offsets, recompute)


def measure(
    config: ExperimentConfig, recompute: Recompute
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Errors of all ways to predict times, and ratios of times."""
    table = measured_table(config)
    draw = np.random.default_rng(0)
    # Every length has a sample of its own, whose id is the length.
    sizes = [(n // 2, n - n // 2) for n in range(MAX_TOKENS + 1)]
    sliced = [*random_slices(draw, recompute)]
    rows = [*random_rows(draw, recompute)]
    whole = PackedRow((0,), MAX_TOKENS, (0, MAX_TOKENS), recompute)
    alone = [PackedRow((n,), n, (0, n), recompute) for n in LENGTHS]
    whole_as_slices = equal_slices(whole, N_SLICES, 8)
    with tokens_on_disk([(MAX_TOKENS // 2, MAX_TOKENS // 2), *sizes[1:]], 257) as tokens:
        stack = Stack(config, StackShape(n_layers=1), tokens)
        rounds = [
            (
                [sum(stack.slices_ms(each)[-1]) for each in sliced],
                [sum(stack.times_ms(row)) for row in rows],
                [sum(stack.times_ms(row)) for row in alone],
                [sum(map(sum, stack.slices_ms(whole_as_slices)))],
                [sum(map(sum, stack.slices_ms([whole])))],
            )
            for _ in range(N_REPEATS)
        ]
    of_slices, of_rows, of_alone, (as_slices_ms,), (as_row_ms,) = (
        np.median(times, axis=0).tolist() for times in zip(*rounds, strict=True)
    )
    last = [each[-1] for each in sliced]
    known, derived = cost_of(table, config), cost_of(_without_pairs(table), config)
    speeds = zip(of_alone, _as_planned(known, alone, recompute), strict=True)
    scale = median(measured / predicted for measured, predicted in speeds)
    forms = {
        "slices, measured": (_as_planned(known, last, recompute), of_slices),
        "slices, derived": (_as_planned(derived, last, recompute), of_slices),
        "packed rows, equal rows": (_as_planned(known, rows, recompute), of_rows),
        "packed rows, tokens and pairs, measured": (
            _by_pairs(known, table, rows, recompute),
            of_rows,
        ),
    }
    errors = {
        f"{recompute.text}: {name}": _errors(np.multiply(scale, predicted).tolist(), measured)
        for name, (predicted, measured) in forms.items()
    }
    return errors, {"scale": scale, f"{N_SLICES} slices over a row": as_slices_ms / as_row_ms}


def _without_pairs(table: ProfileTable) -> ProfileTable:
    layers = {key: replace(layer, pair_ms=None) for key, layer in table.layers.items()}
    return replace(table, layers=layers)


def _as_planned(
    cost: CostModel, microbatches: Sequence[PackedRow], recompute: Recompute
) -> Sequence[float]:
    shapes = shapes_of(microbatches, cost.known_rows)
    return [*cost.stage_costs(shapes, recompute).work_ms[:, MIDDLE_STAGE]]


def _by_pairs(
    cost: CostModel, table: ProfileTable, rows: Sequence[PackedRow], recompute: Recompute
) -> Sequence[float]:
    tokens = np.array([row.offsets[-1] for row in rows], np.float64)
    squares = np.array([np.square(np.diff(row.offsets)).sum() for row in rows], np.float64)
    alone = Shapes.padded(np.ones(len(rows)), tokens, np.zeros(len(rows)))
    of_row = cost.stage_costs(alone, recompute).work_ms[:, MIDDLE_STAGE]
    (pair_ms,) = [
        layer.pair_ms.sum() for layer in table.layers.values() if layer.pair_ms is not None
    ]
    return [*(of_row + pair_ms * (squares - tokens**2) / 2)]


def _errors(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    pairs = [(p, m) for p, m in zip(predicted, measured, strict=True) if np.isfinite(p)]
    ratios = [p / m for p, m in pairs]
    errors = [abs(ratio - 1) for ratio in ratios]
    return {
        "median error": median(errors),
        "most": max(errors),
        "predicted / measured": mean(ratios),
        "beyond the table": len(measured) - len(pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    ratios: dict[str, dict[str, float]] = {}
    for recompute in (Recompute.NONE, Recompute.FULL):
        errors, ratios[recompute.text] = measure(experiment(recompute), recompute)
        results |= errors
    print_table(results, dict.fromkeys(next(iter(results.values())), "{:.3f}"))
    print_table(ratios, dict.fromkeys(next(iter(ratios.values())), "{:.3f}"))
    if arguments.json:
        write_json(arguments.json, {"errors": results, "ratios": ratios})


if __name__ == "__main__":
    main()

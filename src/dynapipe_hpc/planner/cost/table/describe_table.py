"""A cost table in a few lines of text."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dynapipe_hpc.data.errors import printable
from dynapipe_hpc.planner.cost.monotone import make_monotone
from dynapipe_hpc.planner.cost.table.profile_table import (
    QUANTITIES,
    SETTINGS,
    LayerKey,
    LayerProfile,
    ProfileTable,
)

_SHOWN = (
    ("source", "created"),
    ("ranks", "threads", "device", "processor", "dtype", "zero_stage", "host"),
    ("attention", "torch", "dynapipe-hpc"),
)


def describe_table(table: ProfileTable, path: Path) -> str:
    """Description of a table: model, machine, range, and how much noise made costs decrease."""
    model = ", ".join(f"{name} {value}" for name, value in table.model.items() if name != SETTINGS)
    layers = [_describe(key, layer) for key, layer in table.layers.items()]
    return "\n".join([f"{path}: costs of {model}", *_circumstances(table), *layers, *_rest(table)])


def _circumstances(table: ProfileTable) -> Iterator[str]:
    facts = table.provenance
    lines = ([f"{name} {facts[name]}" for name in names if name in facts] for names in _SHOWN)
    yield from (f"  {printable(', '.join(line))}" for line in lines if line)


def _describe(key: LayerKey, layer: LayerProfile) -> str:
    points = int(np.isfinite(layer.forward_ms).sum())
    repaired = [make_monotone(layer.grid(quantity)).n_changed for quantity in QUANTITIES]
    ranges = " x ".join(f"{axis[0]}..{axis[-1]}" for axis in layer.axes)
    work_ms = layer.forward_ms + layer.backward_ms
    halves = "" if layer.input_ms is None else ", backward passes in halves, too"
    return (
        f"  {key}: {points} points of {ranges}, {np.nanmin(work_ms):.3g} to "
        f"{np.nanmax(work_ms):.3g} ms{halves}; "
        f"{sum(repaired) / len(QUANTITIES) / points:.1%} repaired"
    )


def _rest(table: ProfileTable) -> list[str]:
    update = table.update
    lines = [
        f"  update: {1e6 * update.optimizer_ms_per_byte:.3g} ms per MB of weights, "
        f"{1e6 * update.reduce_ms_per_byte:.3g} ms to add it up over replicas"
    ]
    if not any(layer.input_ms is not None for layer in table.layers.values()):
        lines.append("  halves of backward passes: not measured, so estimated where plans split")
    if table.link is not None:
        lines.append(
            f"  link: {table.link.latency_ms:.3g} ms + {table.link.bytes_per_ms / 1e6:.3g} GB/s"
        )
    return lines

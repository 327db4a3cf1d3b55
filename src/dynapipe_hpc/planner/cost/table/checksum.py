"""Tells whether a cost table is still what was written."""

import hashlib
import json

import numpy as np

from dynapipe_hpc.planner.cost.table.profile_table import PADDED, ProfileTable


def checksum_of(table: ProfileTable) -> str:
    """BLAKE2b checksum, 8 bytes long, of a table's content, whatever its order."""
    digest = hashlib.blake2b(digest_size=8)
    facts = {
        "model": dict(table.model),
        "element_bytes": int(table.element_bytes),
        "state_factor": float(table.state_factor),
        "update": [float(value) for value in table.update],
        "link": table.link and table.link.model_dump(),
        "provenance": dict(table.provenance),
    }
    digest.update(_text(facts))
    for key, layer in sorted(table.layers.items()):
        names = {"parameter_bytes": float(layer.parameter_bytes), "grids": [*layer.grids]}
        place = key._asdict()
        if key.layout == PADDED:
            del place["layout"]  # as tables of version 1 know none
        digest.update(_text({**place, **names}))
        for axis in layer.axes:
            digest.update(np.ascontiguousarray(axis, "<i8").data)
        for grid in layer.grids.values():
            digest.update(np.ascontiguousarray(grid, "<f8").data)
        for times in layer.pair_times.values():
            digest.update(np.ascontiguousarray(times, "<f8").data)
    return digest.hexdigest()


def _text(facts: dict[str, object]) -> bytes:
    return json.dumps(facts, sort_keys=True, default=str).encode()

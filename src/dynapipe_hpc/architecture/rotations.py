"""Rotary positions in the settings of decoders of `transformers`.

Two of its types, "longrope" and "dynamic", turn a sample by other angles if a longer one shares its
micro-batch. Up to a number of tokens they do not, and models have no longer rows here.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

KEYS = ("rope_parameters", "rope_scaling")
"""Settings that tell rotary positions, in files of version 5, and of 4."""
LONG = ("longrope", "su")
"""Names of the type that has short and long factors, now and in the oldest files."""
DYNAMIC = "dynamic"


def rotation_tables(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Tables of `config.json` on rotary positions; one per kind of layers if kinds differ."""
    for key in KEYS:
        table = values.get(key)
        for each in [table, *table.values()] if isinstance(table, dict) else []:
            if isinstance(each, dict):
                yield each


def rotation_type(table: Mapping[str, Any]) -> Any:
    """Type of rotary positions of a table."""
    return table.get("rope_type", table.get("type", "default"))


def short_tokens(values: Mapping[str, Any]) -> int | None:
    """Tokens of the longest row for which "longrope" has its short factors; None without it."""
    name = "original_max_position_embeddings"
    for table in rotation_tables(values):
        if rotation_type(table) in LONG:
            known = (values.get(name), table.get(name), values.get("max_position_embeddings"))
            return next((n for n in known if isinstance(n, int)), None)
    return None


def plain_rotations(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with plain angles in place of "dynamic" ones, which are plain in all rows here."""
    plain = deepcopy(dict(values))
    for table in rotation_tables(plain):
        if rotation_type(table) == DYNAMIC:
            table["rope_type"] = table["type"] = "default"
    return plain

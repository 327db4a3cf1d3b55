"""Memory sizes in a configuration, as people write them: 1.5GiB."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic_core import CoreSchema

_POWERS = {prefix: power for power, prefix in enumerate(" kmgt")}
_UNIT = r"([kKmMgGtT][iI]?)?[bB]?"
_WRITTEN = re.compile(rf"\s*(\d{{1,20}})(?:\.(\d{{1,20}}))?\s*{_UNIT}\s*", re.ASCII)


def _parse_bytes(value: object) -> object:
    """Number of bytes that a text such as 1.5GiB stands for; any other value unchanged."""
    written = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if written is None:
        return value
    prefix, decimals = (written[3] or " ").lower(), written[2] or ""
    factor = (1024 if prefix.endswith("i") else 1000) ** _POWERS[prefix[0]]
    size, rest = divmod(int(written[1] + decimals) * factor, 10 ** len(decimals))
    return value if rest else size


WRITTEN = {"type": "string", "pattern": rf"^\s*\d+(\.\d+)?\s*{_UNIT}\s*$"}
"""JSON Schema of a text with a unit."""


class _OrWritten:
    """Note for JSON schemas that text with a unit is allowed besides an integer."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [handler(core_schema), WRITTEN]}


Bytes = Annotated[int, BeforeValidator(_parse_bytes), _OrWritten()]
"""Number of bytes: an integer, or text with a unit in powers of 1000 (kB, MB, GB, TB, or just k, M,
G, T) or 1024 (KiB, MiB, GiB, TiB, or Ki, Mi, Gi, Ti), in letters of either case."""

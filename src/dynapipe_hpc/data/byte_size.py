"""Memory sizes in a configuration, as people write them: 1.5GiB."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, GetJsonSchemaHandler
from pydantic_core import CoreSchema

_FACTORS = {
    "B": 1,
    **{unit: 1000**power for power, unit in enumerate(("kB", "MB", "GB", "TB"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), 1)},
}
_WRITTEN = re.compile(r"\s*(\d{1,20})(?:\.(\d{1,20}))?\s*([A-Za-z]+)\s*", re.ASCII)


def _in_bytes(value: object) -> object:
    """Number of bytes that a text such as 1.5GiB stands for; any other value unchanged."""
    written = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if written is None or written[3] not in _FACTORS:
        return value
    decimals = written[2] or ""
    size, rest = divmod(int(written[1] + decimals) * _FACTORS[written[3]], 10 ** len(decimals))
    return value if rest else size


class _OrWritten:
    """Note for JSON schemas that text with a unit is allowed besides an integer."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        written = {"type": "string", "pattern": rf"^\s*\d+(\.\d+)?\s*({'|'.join(_FACTORS)})\s*$"}
        return {"anyOf": [handler(core_schema), written]}


Bytes = Annotated[int, BeforeValidator(_in_bytes), _OrWritten()]
"""Number of bytes: an integer, or text with a unit in powers of 1000 (kB, MB, GB, TB) or 1024
(KiB, MiB, GiB, TiB)."""

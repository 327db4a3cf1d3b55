"""The JSON Schema of a configuration, for editors."""

from typing import Any

from dynapipe_hpc.experiment import value_kind

_EXTENDS = {
    "type": "string",
    "minLength": 1,
    "description": "File whose keys this one replaces, relative to this one.",
}


def config_schema() -> dict[str, Any]:
    """A schema that a file fits if it has no unknown keys and no values outside their limits.

    No key is required, because a file that this one extends may have it; and a table may fit
    several variants, because that file may choose among them.
    """
    relaxed: dict[str, Any] = _relaxed(value_kind.config_schema())
    relaxed["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    relaxed["properties"]["extends"] = _EXTENDS
    return relaxed


def _relaxed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_relaxed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        "anyOf" if key == "oneOf" else key: _relaxed(value)
        for key, value in schema.items()
        # Under one of these names, a key of a table has a schema, not a list or text.
        if not (key in ("required", "title") and not isinstance(value, dict))
        and not (key == "discriminator" and "propertyName" in value)
    }

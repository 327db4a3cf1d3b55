"""The families of models."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter

from dynapipe_hpc.architecture.decoder import GptShape, LlamaShape
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.t5 import T5Shape
from dynapipe_hpc.architecture.transformers import TransformersShape


def _fill_family(table: Any) -> Any:
    """The table, with family "gpt" if it names none."""
    return {"family": "gpt", **table} if isinstance(table, Mapping) else table


FamilyShape = GptShape | LlamaShape | T5Shape | TransformersShape
"""A model of any family.

The torch modules of a family are in the file of `models` that has its name.
"""

AnyModelShape = Annotated[FamilyShape, Field(discriminator="family"), BeforeValidator(_fill_family)]
"""The [model] table, whose key `family` tells the families apart."""
_ANY: TypeAdapter[FamilyShape] = TypeAdapter(AnyModelShape)


def shape_from_values(values: Mapping[str, Any]) -> ModelShape:
    """The model of a [model] table.

    Raises `pydantic.ValidationError`: A key or value is wrong; places begin with the family.
    """
    return _ANY.validate_python(values)

"""The families of models."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from dynapipe_hpc.architecture.architecture import Architecture
from dynapipe_hpc.architecture.gpt import Gpt
from dynapipe_hpc.architecture.llama import Llama
from dynapipe_hpc.architecture.t5 import T5

FAMILIES: Mapping[str, type[Architecture]] = {"gpt": Gpt, "llama": Llama, "t5": T5}
"""Families by their names in configurations.

The torch modules of a family are in the file of `models` that has its name.
"""

if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[tuple(FAMILIES)]

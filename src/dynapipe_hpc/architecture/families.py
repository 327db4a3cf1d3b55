"""The families of models."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from dynapipe_hpc.architecture.architecture import Architecture
from dynapipe_hpc.architecture.gpt import Gpt
from dynapipe_hpc.architecture.t5 import T5

FAMILIES: Mapping[str, type[Architecture]] = {"gpt": Gpt, "t5": T5}
"""By name in configurations; the torch modules of one are in `models`, in the file of its name."""

if TYPE_CHECKING:
    FamilyName = str
else:
    FamilyName = Literal[tuple(FAMILIES)]

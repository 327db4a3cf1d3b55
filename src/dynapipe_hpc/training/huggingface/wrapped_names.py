"""Names of tensors that were saved from a model inside another object, and so were changed."""

from collections.abc import Iterable
from pathlib import Path

from dynapipe_hpc.data.errors import InputError

_WRAPPERS = {
    "_orig_mod.": (
        "as of a compiled model; save the model inside: model._orig_mod.save_pretrained(NEW_FOLDER)"
    ),
    "base_model.model.": (
        "as of a model with adapters of peft; merge them first: "
        "model.merge_and_unload().save_pretrained(NEW_FOLDER)"
    ),
    "module.": (
        "as of a model in DataParallel or DistributedDataParallel; save the model inside: "
        "model.module.save_pretrained(NEW_FOLDER)"
    ),
    "v_head.": (
        "as of a value head, which trl puts on a model; save the model without it: "
        "model.pretrained_model.save_pretrained(NEW_FOLDER)"
    ),
}
"""Causes and remedies, by the beginnings of names."""


def check_names(folder: Path, names: Iterable[str]) -> None:
    """Refuses tensors of a model that was saved inside another object.

    Raises:
        InputError: A name begins in such a way; names the object.
    """
    names = list(names)
    for prefix, remedy in _WRAPPERS.items():
        if wrapped := [name for name in names if name.startswith(prefix)]:
            raise InputError(
                f"{folder}: {len(wrapped)} of {len(names)} names of tensors begin with "
                f"'{prefix}' ({wrapped[0]}), {remedy}"
            )

"""The file mixture.json of a run folder: the mixture of datasets that the run trains on."""

import json
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from dynapipe_hpc.data.atomic_write import atomic_write
from dynapipe_hpc.data.dataset.mixture import Mixture
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.input_file import read_input

MIXTURE = "mixture.json"


def write_mixture(folder: Path, mixture: Mixture | None) -> None:
    """Writes the mixture of a run; without one, removes what an earlier start has left."""
    path = folder / MIXTURE
    if mixture is None:
        path.unlink(missing_ok=True)
        return
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(asdict(mixture), indent=2) + "\n", encoding="utf-8")


def read_mixture(folder: Path) -> Mixture | None:
    """Reads the mixture of a run; None if it trains on a single dataset."""
    path = folder / MIXTURE
    if not path.exists():
        return None
    try:
        mixture = TypeAdapter(Mixture).validate_json(read_input(path))
    except ValidationError as error:
        detail = error.errors()[0]
        where = ".".join(map(str, detail["loc"])) or "content"
        raise InputError(f"{path}: {where}: {detail['msg']}; restore it from a copy") from None
    if not mixture.is_sound:
        raise InputError(f"{path}: its lists do not describe datasets; restore it from a copy")
    return mixture

"""The error that a path is no run folder: what it is instead."""

from itertools import islice
from pathlib import Path

from dynapipe_hpc.data.errors import InputError

_MAX_NAMED = 5
_OF_A_RUN = "machine.json"
"""A file that every run writes, and nothing else."""
_EARLIER = "iterations.csv"
"""A file that runs of earlier versions wrote."""
_MODEL = "a model of Hugging Face; to see what it writes: dynapipe-hpc generate"
_KINDS = {
    "checkpoint.json": "a checkpoint; name the folder of its run",
    "model.safetensors": _MODEL,
    "config.json": _MODEL,
    "adapter_config.json": "adapters for peft; name the folder of the run that trained them",
    "tokenizer.json": "a tokenizer of Hugging Face; name the folder of a run",
    "config.toml": "a configuration of which no run has begun here: dynapipe-hpc run",
}
"""Kinds of folders by a file of each, the most telling first."""


def not_a_run_error(path: Path, reason: str) -> InputError:
    """The error that a path is no run folder; `reason` names the file that it lacks."""
    try:
        kind = _kind(path)
    except OSError as error:
        kind = f"cannot be read: {error.strerror}; name the folder of a run"
    return InputError(f"{path} is not a run folder ({reason}): {kind}")


def _kind(path: Path) -> str:
    """Kind of a path, and what to do instead."""
    if not path.exists():
        return "it does not exist; name the folder of a run"
    if path.is_file():
        return "it is a file; to see what a dataset or a cost table holds: dynapipe-hpc inspect"
    if (path / _EARLIER).exists():
        return "it is a run of version 0.1 or earlier; use that version, or begin a new run"
    runs = [each for each in (path.parent, path.parent.parent) if (each / _OF_A_RUN).exists()]
    if runs:
        return f"it is part of a run; name {runs[0]}"
    for name, kind in _KINDS.items():
        if (path / name).exists():
            return f"it is {kind}"
    runs = sorted(each.parent for each in path.glob(f"*/{_OF_A_RUN}"))
    if runs:
        more = f", ... ({len(runs)})" if len(runs) > _MAX_NAMED else ""
        return f"it holds runs; name one: {', '.join(map(str, islice(runs, _MAX_NAMED)))}{more}"
    if next(path.glob("*.h5"), None):
        return "it holds datasets or cost tables; to see one: dynapipe-hpc inspect FILE.h5"
    if next(path.iterdir(), None) is None:
        return "it is empty; name the folder of a run"
    return "it holds no file of a run; name the folder of one"

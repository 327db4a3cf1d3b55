"""Settings in which compared runs differ: those that should be equal, and those compared."""

from collections.abc import Iterator, Mapping, Sequence

from dynapipe_hpc.report.run_folder import RunFolder
from dynapipe_hpc.report.settings import settings_of

# Runs are compared to judge layouts and planners, so other settings of these tables may differ.
_EQUAL_TABLES = ("data.", "model.")
_EQUAL_KEYS = ("training.dtype", "training.threads", "training.loss_weighting")
_CHOSEN_TABLES = ("planner.", "cluster.", "executor.", "training.")
_CHOSEN_KEYS = ("model.layers_per_stage",)
_LEFT_OUT = {"data.verify", *_CHOSEN_KEYS}
_FACTS = ("ranks", "device", "processor")


def differences(runs: Sequence[RunFolder], names: Sequence[str]) -> tuple[str, ...]:
    """Lines about facts that should be equal but are not: data, model, dtype, ranks, devices.

    Args:
        runs: The runs.
        names: Names of the runs, in the same order.
    """
    return _lines([dict(_facts(run)) for run in runs], names, missing="not known")


def choices(runs: Sequence[RunFolder], names: Sequence[str]) -> tuple[str, ...]:
    """Lines about other settings in which runs differ: how they are planned, placed and trained.

    Runs that do not have a setting are left out of its line.

    Args:
        runs: The runs.
        names: Names of the runs, in the same order.
    """
    return _lines([dict(_choices(run)) for run in runs], names, missing="")


def _facts(run: RunFolder) -> Iterator[tuple[str, str]]:
    for name, value in settings_of(run).items():
        if (name.startswith(_EQUAL_TABLES) and name not in _LEFT_OUT) or name in _EQUAL_KEYS:
            yield name, str(value)
    for name in _FACTS:
        if name in run.machine:
            yield name, str(run.machine[name])


def _choices(run: RunFolder) -> Iterator[tuple[str, str]]:
    for name, value in settings_of(run).items():
        is_chosen = name.startswith(_CHOSEN_TABLES) or name in _CHOSEN_KEYS
        if is_chosen and name not in _EQUAL_KEYS:
            yield name, str(value)


def _lines(
    runs: Sequence[Mapping[str, str]], names: Sequence[str], *, missing: str
) -> tuple[str, ...]:
    keys = dict.fromkeys(key for run in runs for key in run)
    lines = (_line(key, [run.get(key, missing) for run in runs], names) for key in keys)
    return tuple(line for line in lines if line)


def _line(key: str, values: Sequence[str], names: Sequence[str]) -> str:
    """A line that says which runs have which value; empty if all have the same."""
    named: dict[str, list[str]] = {}
    for value, name in zip(values, names, strict=True):
        named.setdefault(value, []).append(name)
    if len(named) == 1:
        return ""
    parts = [f"{value} in {', '.join(n)}" for value, n in named.items() if value]
    return f"{key}: {'; '.join(parts)}"

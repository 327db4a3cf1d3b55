"""Settings in which compared runs differ although they should be equal: data, model, machine."""

import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from dynapipe_hpc.report.run_folder import RunFolder

# Runs are compared to judge layouts and planners, so these may differ.
_TABLES = ("data", "model")
_KEYS = ("training.dtype", "training.threads", "training.loss_weighting")
_LEFT_OUT = {"data.verify", "model.layers_per_stage"}
_FACTS = ("ranks", "device", "processor")


def differences(runs: Sequence[RunFolder], names: Sequence[str]) -> tuple[str, ...]:
    """Lines about facts in which runs differ: data, model, dtype, ranks, devices.

    Args:
        runs: The runs.
        names: Names of the runs, in the same order.
    """
    facts = [dict(_facts(run)) for run in runs]
    keys = dict.fromkeys(key for of_run in facts for key in of_run)
    lines = (_line(key, [of_run.get(key, "not known") for of_run in facts], names) for key in keys)
    return tuple(line for line in lines if line)


def _line(key: str, values: Sequence[str], names: Sequence[str]) -> str:
    """A line that says which runs have which value; empty if all have the same."""
    named: dict[str, list[str]] = {}
    for value, name in zip(values, names, strict=True):
        named.setdefault(value, []).append(name)
    if len(named) == 1:
        return ""
    return f"{key}: " + "; ".join(f"{value} in {', '.join(n)}" for value, n in named.items())


def _facts(run: RunFolder) -> Iterator[tuple[str, str]]:
    config = tomllib.loads(run.config)
    for table in _TABLES:
        for key, value in _table(config, table).items():
            if (name := f"{table}.{key}") not in _LEFT_OUT:
                yield name, str(value)
    for name in _KEYS:
        table, key = name.split(".")
        if key in _table(config, table):
            yield name, str(_table(config, table)[key])
    for name in _FACTS:
        if name in run.machine:
            yield name, str(run.machine[name])


def _table(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name, {})
    return found if isinstance(found, dict) else {}

"""Settings of a run, as its configuration has them."""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from dynapipe_hpc.report.run_folder import RunFolder

Settings = Mapping[str, Any]
"""Values by their names in a configuration, such as planner.batch.rule."""


def settings_of(run: RunFolder) -> Settings:
    """All settings of a run."""
    return dict(_flat(tomllib.loads(run.config), ""))


def n_stages_of(settings: Settings) -> int:
    """Number of pipeline stages; 1 if the configuration does not tell."""
    n_stages = settings.get("cluster.n_stages")
    return n_stages if type(n_stages) is int and n_stages > 0 else 1


def is_dynamic(settings: Settings) -> bool:
    """Whether micro-batches are dynamic; other rules are what that is compared with."""
    return settings.get("planner.batch.rule") == "dynamic"


def has_measured_costs(settings: Settings) -> bool:
    """Whether plans were made with measured costs."""
    return settings.get("planner.cost.kind") == "profiled"


def _flat(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

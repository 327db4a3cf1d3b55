"""Whole runs of several methods, planned but not executed, and the folder of the predictions."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from dynapipe_hpc.data.atomic_write import check_replaceable, new_folder, writing
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.experiment.study.predict import (
    NO_CHOOSERS,
    Choosers,
    Outcome,
    Planned,
    methods_of,
    predict,
)
from dynapipe_hpc.job.ranks import Ranks


def simulate(
    ranks: Ranks,
    files: Experiment,
    output: Path | None,
    on_share: Callable[[float], None] = lambda _: None,
    *,
    choosers: Choosers = NO_CHOOSERS,
) -> list[Outcome]:
    """Plans all iterations of a run by every method; see `predict`.

    `output` is the new folder of the simulation, see docs/formats.md, which appears when all is
    planned; None to write none.
    """
    with ranks.fail_together():
        # Before the work, which may take hours.
        if ranks.is_first and output:
            if os.path.lexists(output):
                raise InputError(f"{output}: already exists; name a new folder, or remove it first")
            if output.parent.exists():
                check_replaceable(output)
        methods, n_iterations = methods_of(files.config), files.training.n_iterations
    outcomes = predict(ranks, files, methods, n_iterations, on_share=on_share, choosers=choosers)
    with ranks.fail_together():
        if ranks.is_first and output:
            planned = [each for outcome in outcomes for each in outcome.planned]
            _write(output, to_toml(files.config), planned)
    return outcomes


def _write(output: Path, config_toml: str, planned: Sequence[Planned]) -> None:
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    times = [(*each.record.key, each.planning_ms) for each in planned]
    files = {
        "config.toml": config_toml,
        "planned.jsonl": _lines(asdict(each.record) for each in planned),
        "planning.jsonl": _lines(
            {"method": name, "iteration": k, "planning_ms": ms} for name, k, ms in times
        ),
    }
    with new_folder(output) as temporary:
        for name, text in files.items():
            (temporary / name).write_text(text, encoding="utf-8")


def _lines(records: Iterable[Mapping[str, object]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)

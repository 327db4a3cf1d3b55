"""Every method in every setting, on the division of the model that suits it best."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dynapipe_hpc.experiment.study.predict import Planned, tokens_per_s
from reproduce import methods
from reproduce.settings import Division, Setting, divisions, settings, tables_of
from reproduce.studies import Method, Studies, Study

N_BATCHES = {4: 2, 8: 4, 16: 2, 32: 2}
"""Global batches for each seed, by number of GPUs."""


class Point(NamedTuple):
    """A method in a setting.

    Attributes:
        division: The division of the model.
        rates: Real tokens per second, by seed.
        planned: All iterations of all seeds.
    """

    division: Division
    rates: Sequence[float]
    planned: Sequence[Planned]


Points = Mapping[tuple[Setting, str], Point]
"""Points by setting and method; methods that cannot run are absent."""

Ranked = dict[tuple[Setting, str], list[Division]]
"""Divisions of every method in every setting, the best first; those that cannot run are absent."""


def compared(setting: Setting) -> list[Method]:
    """The methods of a setting; two more on eight GPUs, as one takes long to plan."""
    every = [
        methods.packing(setting.longest),
        methods.published(),
        methods.padded(),
        methods.everything(),
    ]
    if setting.n_gpus == 8 and setting.is_over_lengths:
        every += [methods.fitted(), methods.balanced()]
    return every


def simulate_all(studies: Studies, every: Sequence[Setting] | None = None) -> Points:
    """Finds the best division by one batch, and simulates others until one runs all batches.

    Args:
        studies: The simulations.
        every: The settings; those of figures 13 and 14 if left out.
    """
    every = list(settings()) if every is None else every
    left = _ranked(studies, every)
    found: dict[tuple[Setting, str], Point] = {}
    while left:
        found |= _run(studies, {key: ranked[0] for key, ranked in left.items()})
        rest = {key: ranked[1:] for key, ranked in left.items() if key not in found}
        left = {key: ranked for key, ranked in rest.items() if ranked}
    # What the paper calls MLM+DS (c).
    ours = {key: point.division for key, point in found.items() if key[1] == methods.ALL}
    same = _run(studies, {(setting, methods.PACKING): d for (setting, _), d in ours.items()})
    return found | {(setting, methods.SAME): point for (setting, _), point in same.items()}


def _ranked(studies: Studies, every: Sequence[Setting]) -> Ranked:
    pairs = [(setting, division) for setting in every for division in divisions(setting.n_gpus)]
    asked = [
        Study(
            f"{_name(setting, division)}/first",
            setting.family,
            compared(setting),
            tables_of(setting, division, 1),
            seeds=(0,),
        )
        for setting, division in pairs
    ]
    found = studies.run(asked)
    rates: dict[tuple[Setting, str], dict[Division, float]] = {}
    for (setting, division), study in zip(pairs, asked, strict=True):
        [planned] = found[study.name]
        for record in (each.record for each in planned):
            if rate := tokens_per_s([record]):
                rates.setdefault((setting, record.method), {})[division] = rate
    return {key: sorted(of, key=of.__getitem__, reverse=True) for key, of in rates.items()}


def _run(
    studies: Studies, tried: Mapping[tuple[Setting, str], Division]
) -> dict[tuple[Setting, str], Point]:
    """The points of divisions on which a method runs all batches."""
    asked = {
        (setting, method): Study(
            f"{_name(setting, division)}/{_word(method)}",
            setting.family,
            [each for each in compared(setting) if each["name"] == method],
            tables_of(setting, division, N_BATCHES[setting.n_gpus]),
        )
        for (setting, method), division in tried.items()
    }
    found = studies.run(list(asked.values()))
    points = {}
    for key, study in asked.items():
        of_seeds = found[study.name]
        rates = [tokens_per_s([each.record for each in planned]) for planned in of_seeds]
        known = [rate for rate in rates if rate is not None]
        if len(known) == len(rates):
            points[key] = Point(tried[key], known, [each for seed in of_seeds for each in seed])
    return points


def _name(setting: Setting, division: Division) -> str:
    return f"packing/{'_'.join(map(str, setting))}/{division}"


def _word(method: str) -> str:
    return re.sub(r"\W+", "_", method)

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import pytest
from tests.examples.measured_layers import linear_table
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.experiment.load import to_toml
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.cost.table.profile_table import fingerprint_of

DATASET, TABLE = "samples.h5", "costs.h5"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Number of times that HDF5 opened each file, by name."""
    count: Counter[str] = Counter()
    open_file = h5py.File.__init__

    def counting(file: h5py.File, name: object, *args: object, **settings: object) -> None:
        if isinstance(name, str):
            count[Path(name).resolve().name] += 1  # a descriptor leads to its file
        open_file(file, name, *args, **settings)

    monkeypatch.setattr(h5py.File, "__init__", counting)
    yield count


def written(folder: Path) -> str:
    """An experiment of one rank with a dataset and a cost table, and no layers per stage."""
    write_samples(folder / DATASET, [([1] * 20, [9], "long")] * 40)
    config = tiny_experiment()
    write_table(replace(linear_table(), model=fingerprint_of(config.model)), folder / TABLE)
    cost = ProfiledConfig(path=folder / TABLE)
    path = folder / "config.toml"
    data = {"dataset": str(folder / DATASET)}
    path.write_text(to_toml(with_keys(config, data=data, planner={"cost": cost})))
    return str(path)


VERBS: dict[str, Callable[[str, Path], list[str]]] = {
    "plan": lambda config, _: ["plan", config, "--explain"],
    "tune": lambda config, _: ["tune", config],
    "doctor": lambda config, _: ["doctor", config],
    "run": lambda config, folder: ["run", config, "-o", str(folder / "run")],
}


@pytest.mark.parametrize("verb", VERBS)
def test_dataset_and_cost_table_are_opened_once(
    verb: str, tmp_path: Path, opened: Counter[str]
) -> None:
    arguments = VERBS[verb](written(tmp_path), tmp_path)
    opened.clear()
    main(arguments)
    assert (opened[DATASET], opened[TABLE]) == (1, 1)

"""An experiment: its layers of stages, chosen for lengths, and its files, each opened once."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import h5py
import pytest
from tests.examples.measured_layers import linear_table
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment, with_keys

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.cli.main import main
from dynapipe_hpc.data.microbatch import Layout
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.load import load_config, to_toml
from dynapipe_hpc.experiment.show_plan import show_plan
from dynapipe_hpc.planner.batch.config import DynamicConfig, LayoutName
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.cost.table.profile_table import fingerprint_of
from dynapipe_hpc.planner.placement import placements

PLACEMENTS = "dynapipe_hpc.experiment.experiment.placements"


def with_large_head(folder: Path) -> ExperimentConfig:
    """A vocabulary so large that the head takes as long as several layers, and long pipelines."""
    write_samples(folder / "samples.h5", [([1] * 20, [9], "long")] * 400)
    data = {"dataset": str(folder / "samples.h5"), "tokens_per_batch": 4096}
    model = {"n_layers": 8, "vocab_size": 2000}
    return with_keys(tiny_experiment(n_stages=2), data=data, model=model)


def with_placement(config: ExperimentConfig, placement: Placement) -> ExperimentConfig:
    """The configuration, as if it named these layers."""
    return with_keys(config, model={"layers_per_stage": placement.layers_per_stage})


def test_a_large_head_leaves_its_stage_fewer_layers(tmp_path: Path) -> None:
    files = Experiment(with_large_head(tmp_path))
    placement = files.placement
    first, last = placement.layers_per_stage
    assert first > last
    assert files.placement_for([[(20, 1)] * 195] * 2) == placement
    shown = show_plan(files.open(), iteration=0)
    assert f"\nlayers per stage {first}, {last}\n" in shown


@pytest.mark.parametrize(
    ("layouts", "expected"),
    [
        (("padded",), Layout.PADDED),
        (("packed", "padded"), Layout.PADDED),
        (("packed",), Layout.PACKED),
    ],
)
def test_layers_are_placed_by_costs_of_the_plainest_layout_that_plans_may_have(
    tmp_path: Path, layouts: tuple[LayoutName, ...], expected: Layout
) -> None:
    batch = DynamicConfig(layouts=layouts)
    with patch(PLACEMENTS, wraps=placements) as found:
        _ = Experiment(with_keys(with_large_head(tmp_path), planner={"batch": batch})).placement
    assert found.call_args.kwargs["layout"] is expected


def test_a_file_of_the_configuration_names_the_chosen_layers(tmp_path: Path) -> None:
    config = with_large_head(tmp_path)
    placement = Experiment(config).placement
    path = tmp_path / "resolved.toml"
    path.write_text(to_toml(config, placement))
    assert load_config(path) == with_placement(config, placement)
    assert Experiment(load_config(path)).placement == placement


@pytest.mark.parametrize("counts", [(2, 6), (7, 1)])
def test_named_layers_stay_where_they_are(tmp_path: Path, counts: tuple[int, ...]) -> None:
    files = Experiment(with_placement(with_large_head(tmp_path), Placement(counts)))
    assert files.placement == Placement(counts)
    assert files.placement_for([[(20, 1)]]) == Placement(counts)
    assert any_placement(files.config) == Placement(counts)


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


def written_config(folder: Path) -> str:
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
    arguments = VERBS[verb](written_config(tmp_path), tmp_path)
    opened.clear()
    main(arguments)
    assert (opened[DATASET], opened[TABLE]) == (1, 1)

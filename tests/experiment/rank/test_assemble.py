from pathlib import Path

import torch
from mpi4py import MPI
from tests.examples.tokenized import write_samples
from tests.jobs.tiny_experiment import tiny_experiment

from dynapipe_hpc.data.microbatch import DenseRows, PaddedRows
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import CPU, RankDevice
from dynapipe_hpc.experiment.run.rank import Rank
from dynapipe_hpc.job.job import Job

TWO_OF_A_TASK = [Sample(0, 3, 2, task_id=0), Sample(1, 0, 1, task_id=1), Sample(2, 1, 4, task_id=0)]


def rank_of(folder: Path, data: dict[str, str] | None = None, **training: object) -> Rank:
    """A rank alone, on the samples of a small dataset."""
    path = folder / "x.h5"
    tables = tiny_experiment().model_dump()
    tables["data"]["dataset"] = str(path if path.exists() else write_samples(path))
    tables["data"] |= data or {}
    tables["training"] |= training
    config = ExperimentConfig.model_validate(tables)
    experiment = Experiment(config).open()
    return Rank(Job(MPI.COMM_SELF), experiment, RankDevice(CPU))


def test_a_rank_loads_tokens_as_configured(tmp_path: Path) -> None:
    rank = rank_of(tmp_path, loss_weighting="task")
    rank.loader.start_iteration(TWO_OF_A_TASK)
    batch = rank.loader(DenseRows(((0, 1), (2,)), 6))
    assert batch.tokens is not None
    assert batch.labels is not None
    assert batch.tokens.tolist() == [[9, 1, 2, 3, 4, 9], [9, 5, 6, 7, 8, 9]]
    twelfth, half = 1 / 12, 1 / 2
    assert batch.labels.weights.tolist() == [
        [0, 0, 0, twelfth, twelfth, half],
        [0, twelfth, twelfth, twelfth, twelfth, 0],
    ]


def test_a_rank_trains_what_is_configured(tmp_path: Path) -> None:
    spans = [[(0, 1), (3, 4)], [], []]
    write_samples(tmp_path / "x.h5", spans=spans)
    weights = {}
    for loss_on in ("marked", "targets", "all"):
        rank = rank_of(tmp_path, {"loss_on": loss_on})
        rank.loader.start_iteration(TWO_OF_A_TASK[:1])
        labels = rank.loader(PaddedRows((0,), 6)).labels
        assert labels is not None
        weights[loss_on] = labels.weights.tolist()
    fifth, half = 1 / 5, 1 / 2
    assert weights == {
        "marked": [[half, 0, 0, half, 0, 0]],
        "targets": [[0, 0, 0, half, half, 0]],
        "all": [[fifth, fifth, fifth, fifth, fifth, 0]],
    }


def test_a_rank_starts_with_the_weights_of_its_seed(tmp_path: Path) -> None:
    found = []
    for seed in (3, 3, 4):
        parts = rank_of(tmp_path, seed=seed, dtype="float64").state.snapshot()
        found.append({part.name: part.values.clone() for part in parts})
    assert all(torch.equal(found[0][name], weight) for name, weight in found[1].items())
    name = "weight/layers.2.attention.query_key_value.weight"
    assert found[0][name].dtype == torch.float64
    assert not torch.equal(found[0][name], found[2][name])

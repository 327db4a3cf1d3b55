"""A state that one layout of ranks wrote is what any other reads; folders of checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from tests.examples.checkpoint_weights import different, unsplit
from tests.examples.equal_shares import equal_shares
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from tests.examples.training_case import SHAPE, T5_SHAPE, UNEVEN_SHAPE, UNEVEN_T5_SHAPE
from torch import Tensor

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.data.errors import InputError, RunError
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.sharding.shards import WHOLE, splits_of
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.checkpoint.config import CheckpointConfig
from dynapipe_hpc.training.checkpoint.folder import (
    CheckpointFolder,
    DamagedError,
    Description,
    read_fields,
    write_fields,
)
from dynapipe_hpc.training.checkpoint.part_files import check_part
from dynapipe_hpc.training.checkpoint.parts import CheckpointReader, TrainingState, write_parts
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.optimizer import STATE_KINDS, Optimizer
from dynapipe_hpc.training.tied_copies import tied_weights

Result = TypeVar("Result")
LORA_RANK = 2
ADAPTED_SHAPE = SHAPE.model_copy(update={"lora": Lora(rank=LORA_RANK)})
FIRST_STEPS = (1.0, -0.5, 2.0)
CONFIG = TrainingConfig(iterations=100, learning_rate=1e-2)


def cluster(
    n_stages: int = 1, n_replicas: int = 1, n_shards: int = 1, *, zero: bool = False
) -> Cluster:
    return Cluster(
        n_stages=n_stages,
        n_replicas=n_replicas,
        n_shards=n_shards,
        zero_stage=1 if zero else 0,
        device_memory_bytes=1,
    )


ONE = cluster()
LAYOUTS = {
    "2 stages x 2 replicas": cluster(2, 2),
    "the same with shared state": cluster(2, 2, zero=True),
    "4 stages": cluster(4),
    "4 replicas": cluster(1, 4),
    "4 replicas with shared state": cluster(1, 4, zero=True),
    "one": ONE,
    "2 shards": cluster(n_shards=2),
    "2 stages x 2 shards with shared state": cluster(2, 2, 2, zero=True),
}


@dataclass
class Rank:
    """A rank with nothing but its state."""

    module: torch.nn.Module
    optimizer: Optimizer
    state: TrainingState

    @classmethod
    def of(
        cls, shape: ModelShape, layout: Cluster, collectives: LocalCollectives, dtype: torch.dtype
    ) -> "Rank":
        stage, placement = collectives.stage, equal_shares(shape, layout)
        module = family_of(shape)(
            shape,
            placement.layers[stage],
            first=stage == 0,
            last=stage == layout.n_stages - 1,
            shards=collectives,
            seed=5,
            dtype=dtype,
        )
        tied = tied_weights(shape, placement, layout.n_shards)
        shares_state = layout.zero_stage == 1
        optimizer = Optimizer(module, CONFIG, collectives, shares_state=shares_state, tied=tied)
        return cls(module, optimizer, TrainingState(module, optimizer, collectives))

    def step(self, value: float) -> None:
        """Trains with gradients that only depend on the place in the whole weight."""
        splits, gradients = splits_of(self.module), self.optimizer.parameters.gradient_of
        for name, parameter in self.module.named_parameters():
            if parameter in gradients:
                split = splits.get(name, WHOLE)
                held = split.part_of(torch.ones(split.whole_shape(parameter.shape)))
                gradients[parameter].copy_(value * parameter.detach().cos() * held)
        self.optimizer.step().read()


def on_ranks(
    layout: Cluster, shape: ModelShape, dtype: torch.dtype, work: Callable[[int, Rank], Result]
) -> list[Result]:
    world = LocalWorld(layout.n_ranks)
    sums = LocalSums(world, layout)
    return world.run(
        lambda rank: work(rank, Rank.of(shape, layout, LocalCollectives(sums, rank), dtype))
    )


def trained(
    folder: Path,
    layout: Cluster = ONE,
    shape: ModelShape = SHAPE,
    dtype: torch.dtype = torch.float32,
) -> "Written":
    """Writes a checkpoint after a few steps."""
    folder.mkdir()

    def work(rank: int, own: Rank) -> Counters:
        for value in FIRST_STEPS:
            own.step(value)
        checksum = write_parts(folder, rank, own.state.snapshot())
        check_part(folder, rank, checksum)
        return own.state.counters

    counters = on_ranks(layout, shape, dtype, work)
    assert len(set(counters)) == 1
    return Written(folder, layout.n_ranks, counters[0], shape, dtype)


@dataclass
class Written:
    """A checkpoint, and what it was made of."""

    folder: Path
    n_parts: int
    counters: Counters
    shape: ModelShape
    dtype: torch.dtype

    def rewrite(self, target: Path, layout: Cluster) -> None:
        """Reads the checkpoint into another layout, and writes it from there."""
        target.mkdir()
        weights = unsplit(self.folder, self.n_parts, "weight")

        def work(rank: int, own: Rank) -> Counters:
            CheckpointReader(self.folder, self.n_parts).fill(own.state.to_restore())
            own.state.resume(self.counters)
            write_parts(target, rank, own.state.snapshot())
            splits = splits_of(own.module)
            for name, parameter in trained_in(own.module).items():
                expected = splits.get(name, WHOLE).part_of(weights[name]).to(self.dtype)
                assert torch.equal(parameter, expected), name
            return own.state.counters

        assert set(on_ranks(layout, self.shape, self.dtype, work)) == {self.counters}


def trained_in(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if p.requires_grad}


def everything(folder: Path, n_parts: int) -> dict[str, Tensor]:
    return {
        f"{kind}/{name}": tensor
        for kind in STATE_KINDS
        for name, tensor in unsplit(folder, n_parts, kind).items()
    }


# Whatever was written first, every layout reads it, writes it again and is read.
@pytest.mark.parametrize(
    ("source", "shape", "dtype"),
    [
        ("2 stages x 2 replicas", SHAPE, torch.float32),
        ("2 stages x 2 shards with shared state", T5_SHAPE, torch.bfloat16),
        ("4 replicas with shared state", SHAPE, torch.float16),
        ("2 stages x 2 shards with shared state", ADAPTED_SHAPE, torch.bfloat16),
    ],
    ids=lambda value: getattr(value, "family", str(value)),
)
def test_every_layout_reads_what_another_wrote(
    tmp_path: Path, source: str, shape: ModelShape, dtype: torch.dtype
) -> None:
    written = trained(tmp_path / "first", LAYOUTS[source], shape, dtype)
    expected = everything(tmp_path / "first", written.n_parts)
    for name, layout in LAYOUTS.items():
        written.rewrite(tmp_path / name, layout)
        assert different(everything(tmp_path / name, layout.n_ranks), expected) == [], name


@pytest.mark.parametrize("shape", [UNEVEN_SHAPE, UNEVEN_T5_SHAPE], ids=lambda shape: shape.family)
@pytest.mark.parametrize("source", [1, 2, 3])
def test_no_checkpoint_holds_what_fills_up_a_vocabulary(
    tmp_path: Path, shape: ModelShape, source: int
) -> None:
    written = trained(tmp_path / "first", cluster(n_shards=source, zero=True), shape)
    expected = everything(tmp_path / "first", written.n_parts)
    assert {len(t) for name, t in expected.items() if "embedding" in name} >= {shape.vocab_size}
    for n_shards in (1, 2, 3):
        folder = tmp_path / f"{n_shards} shards"
        written.rewrite(folder, cluster(n_shards=n_shards))
        assert different(everything(folder, n_shards), expected) == []


def test_a_missing_rank_is_noticed(tmp_path: Path) -> None:
    trained(tmp_path / "a", cluster(2))
    with pytest.raises(DamagedError, match=r"weight/.* is missing in the checkpoint"):
        read(tmp_path / "a", SHAPE)


def test_another_model_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "a")
    wider = SHAPE.model_copy(update={"ffn_size": 64})
    with pytest.raises(DamagedError, match=r"float32 of shape \[32, 16\], not .* \[64, 16\]"):
        read(tmp_path / "a", wider)


def read(folder: Path, shape: ModelShape) -> None:
    on_ranks(
        ONE,
        shape,
        torch.float32,
        lambda _, own: CheckpointReader(folder, 1).fill(own.state.to_restore()),
    )


COUNTERS = Counters(n_steps=7, n_updates=6, loss_scale=2.0**15, n_scaled_steps=3, n_skipped_steps=0)


def description(n_done: int) -> Description:
    return Description(n_done, COUNTERS, {"data.seed": 1, "model.head_size": None}, ("ab", "cd"))


def write(folder: CheckpointFolder, *numbers: int) -> None:
    for n_done in numbers:
        folder.begin(n_done)
        folder.finish(description(n_done))


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir())


def test_another_version_is_refused(tmp_path: Path) -> None:
    write_fields(tmp_path / "x.json", "checkpoint", 2, {})
    with pytest.raises(InputError, match=r"of version 2, but this .* version 1; use the") as met:
        read_fields(tmp_path / "x.json", "checkpoint", 1)
    assert not isinstance(met.value, DamagedError)


def test_only_complete_checkpoints_count(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", CheckpointConfig(keep_last=9))
    assert folder.complete() == []
    write(folder, 5, 10, 1_000_000)
    folder.begin(15)
    assert [path.name for path in folder.complete()] == ["1000000", "000010", "000005"]
    aside = folder.set_aside(folder.complete()[0])
    assert aside.name == "1000000.damaged"
    assert [path.name for path in folder.complete()] == ["000010", "000005"]


def test_what_was_not_finished_is_removed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, CheckpointConfig())
    write(folder, 5)
    folder.begin(10)
    (tmp_path / ".000001.removed.partial").mkdir()
    (tmp_path / ".something.partial").touch()
    assert [path.name for path in folder.clear()] == [".000010.partial"]
    assert names(folder) == [".something.partial", "000005"]


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (CheckpointConfig(), ["000004", "000005"]),
        (CheckpointConfig(keep_last=1), ["000005"]),
        (CheckpointConfig(keep_last=1, keep_every=2), ["000002", "000004", "000005"]),
    ],
)
def test_old_checkpoints_are_removed(
    tmp_path: Path, config: CheckpointConfig, kept: list[str]
) -> None:
    folder = CheckpointFolder(tmp_path, config)
    write(folder, 1, 2, 3, 4, 5)
    assert names(folder) == kept


def test_a_checkpoint_that_does_not_fit_is_told_of_in_bytes(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "checkpoints", CheckpointConfig())
    folder.check_room(1)
    with pytest.raises(RunError, match=r"needs 1,000,000,000,000,000 bytes, but only .* are free"):
        folder.check_room(10**15)

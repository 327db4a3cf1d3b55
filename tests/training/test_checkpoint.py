"""A state that one layout of ranks wrote is what any other layout reads."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from tests.examples.checkpoint_weights import unsplit
from tests.examples.equal_shares import equal_shares
from tests.examples.local_ranks import LocalCollectives, LocalSums, LocalWorld
from tests.examples.same_tensors import different
from tests.examples.training_case import SHAPE, T5_SHAPE, UNEVEN_SHAPE, UNEVEN_T5_SHAPE
from torch import Tensor

from dynapipe_hpc.architecture.lora import Lora
from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.sharding.split import WHOLE, splits_of
from dynapipe_hpc.models.tied_weights import tied_weights
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.training.checkpoint.folder import DamagedError
from dynapipe_hpc.training.checkpoint.part_files import check_part
from dynapipe_hpc.training.checkpoint.parts import (
    CheckpointReader,
    TrainingState,
    write_parts,
)
from dynapipe_hpc.training.config import TrainingConfig
from dynapipe_hpc.training.counters import Counters
from dynapipe_hpc.training.optimizer import STATE_KINDS, Optimizer

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


@pytest.mark.parametrize("shape", [SHAPE, ADAPTED_SHAPE], ids=["weights", "adapters"])
def test_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path, shape: ModelShape) -> None:
    written = trained(tmp_path / "first", shape=shape)

    def go_on(_: int, own: Rank) -> Tensor:
        for value in (0.3, -1.0):
            own.step(value)
        return own.optimizer.parameters.weights.clone()

    def undisturbed(rank: int, own: Rank) -> Tensor:
        for value in FIRST_STEPS:
            own.step(value)
        return go_on(rank, own)

    def resumed(rank: int, own: Rank) -> Tensor:
        CheckpointReader(written.folder, 1).fill(own.state.to_restore())
        own.state.resume(written.counters)
        return go_on(rank, own)

    found = on_ranks(ONE, shape, torch.float32, resumed)[0]
    assert torch.equal(found, on_ranks(ONE, shape, torch.float32, undisturbed)[0])


def test_a_snapshot_does_not_change_while_training_goes_on(tmp_path: Path) -> None:
    tmp_path.joinpath("a").mkdir()

    def work(rank: int, own: Rank) -> None:
        own.step(1.0)
        before = own.optimizer.parameters.weights.clone()
        snapshot = own.state.snapshot()
        own.step(1.0)
        write_parts(tmp_path / "a", rank, snapshot)
        assert not torch.equal(before, own.optimizer.parameters.weights)
        found = unsplit(tmp_path / "a", 1, "weight")
        for name, parameter in own.module.named_parameters():
            start = int(parameter.storage_offset())
            old = before[start : start + parameter.numel()].view_as(parameter)
            assert torch.equal(found[name], old), name

    on_ranks(ONE, SHAPE, torch.float32, work)


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

"""Low-rank adapters, which are trained in place of the weights of a model."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from pydantic import Field

from dynapipe_hpc.architecture.part import (
    BACKWARD_WORK,
    EMBEDDING,
    NOTHING,
    Amount,
    Block,
    Part,
    Work,
    total,
)
from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.data.did_you_mean import did_you_mean


class Lora(ConfigTable):
    """The [model.lora] table: adapters of linear layers, beside which all weights are frozen.

    A layer with an adapter maps x to W x + (alpha / rank) B A x, and only A and B are trained.

    Attributes:
        rank: Number of rows of A, and of columns of B.
        alpha: Numerator of alpha / rank, the factor of what adapters add.
        targets: Linear layers that have adapters, by the names in docs/lora.md; None for all
            linear layers of attention and feed-forward.

    Source:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022,
        arXiv:2106.09685.
    """

    rank: int = Field(default=8, ge=1, le=2**16)
    alpha: float = Field(default=16.0, gt=0, le=1e9)
    targets: tuple[str, ...] | None = Field(default=None, min_length=1)

    def __str__(self) -> str:
        """Properties that costs depend on: the rank and the layers that have adapters."""
        layers = ", ".join(sorted(self.targets)) if self.targets else "all layers"
        return f"rank {self.rank} of {layers}"

    @property
    def scale(self) -> float:
        """Factor of what adapters add."""
        return self.alpha / self.rank

    def adapts(self, *names: str) -> bool:
        """Whether any of these linear layers has an adapter."""
        return self.targets is None or not set(names).isdisjoint(self.targets)

    def check(self, names: Iterable[str]) -> None:
        """Refuses targets that a model does not have.

        Raises:
            ValueError: A target is not among them, or is named twice.
        """
        known, targets = list(dict.fromkeys(names)), self.targets or ()
        for target in targets:
            if target not in known:
                raise ValueError(
                    f"model.lora.targets names {target!r}, but the linear layers of this family "
                    f"are {', '.join(known)}; name some of these, or leave targets out for all"
                    f"{did_you_mean(target, known)}"
                )
        if len(set(targets)) < len(targets):
            raise ValueError(f"model.lora.targets names a layer twice: {', '.join(targets)}")


class Maps(NamedTuple):
    """Linear maps of a block that have the same input, on one shard.

    Attributes:
        n_outputs: Width of the outputs of each map, by its name in `Lora.targets`.
        kept: Numbers kept for the gradients of their weights only: the input, unless something
            else needs it, too.
        of_source: Whether the input has the tokens of the other side.
        is_deferrable: Whether gradients of weights may be left to W.
    """

    n_inputs: int
    n_outputs: Mapping[str, int]
    kept: Amount = NOTHING
    of_source: bool = False
    is_deferrable: bool = True


def adapted(block: Block, lora: Lora | None, *all_maps: Maps) -> Block:
    """A block as it is trained: unchanged, or frozen except for adapters of its maps.

    An adapter keeps the product of its first matrix and the input, beside the input of the map.
    """
    if lora is None:
        return block
    sizes, largest, work, deferrable, kept = 0, 0, NOTHING, NOTHING, block.kept
    for maps in all_maps:
        widths = [width for name, width in maps.n_outputs.items() if lora.adapts(name)]
        n = sum(lora.rank * (maps.n_inputs + width) for width in widths)
        of_maps = _per_token(2 * n, maps)
        sizes, work = sizes + n, total(work, of_maps)
        largest = max([largest, *(lora.rank * max(maps.n_inputs, width) for width in widths)])
        deferrable = total(deferrable, of_maps if maps.is_deferrable else NOTHING)
        more = _per_token(lora.rank * len(widths), maps) if widths else maps.kept.times(-1)
        kept = total(kept, more)
    of_block = block.work
    return replace(
        block,
        parameters=block.parameters + sizes,
        frozen=block.parameters,
        largest_weight=largest,
        work=Work(total(of_block.linear, work), of_block.attention, spared=of_block.linear),
        deferrable=deferrable,
        kept=kept,
    )


def frozen_but_adapters(parts: Mapping[str, Part], lora: Lora | None) -> Mapping[str, Part]:
    """Parts as they are trained: unchanged, or frozen where no block has adapters."""
    if lora is None:
        return parts
    return {
        kind: part if part.frozen else _frozen(part, is_first=kind == EMBEDDING)
        for kind, part in parts.items()
    }


def _frozen(part: Part, *, is_first: bool) -> Part:
    """A frozen part; before the first, there is nothing that has a gradient."""
    spared = BACKWARD_WORK if is_first else 1
    blocks = [
        replace(
            block,
            frozen=block.parameters,
            largest_weight=0,
            work=block.work._replace(spared=block.work.linear.times(spared)),
        )
        for block in part.blocks
    ]
    return replace(part, blocks=tuple(blocks), gradient_term=NOTHING, gradient_sum=NOTHING)


def _per_token(n: int, maps: Maps) -> Amount:
    return Amount(per_source=n) if maps.of_source else Amount(n)

"""Low-rank adapters, which are trained in place of the weights of a model."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from pydantic import Field

from dynapipe_hpc.architecture.part import BACKWARD_WORK, EMBEDDING, NOTHING, Part
from dynapipe_hpc.data.config_table import ConfigTable
from dynapipe_hpc.data.errors import did_you_mean


class Lora(ConfigTable):
    """The [model.lora] table: adapters of linear layers; all other weights are frozen.

    A layer with an adapter maps x to W x + (alpha / rank) B A x, and only A and B are trained.

    Attributes:
        rank: Number of rows of A, and of columns of B.
        alpha: Numerator of alpha / rank, the factor of what adapters add.
        targets: Linear layers that have adapters, by the names in docs/lora.md; None means all
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
        return self.alpha / self.rank

    def adapts(self, *names: str) -> bool:
        return self.targets is None or not set(names).isdisjoint(self.targets)

    def check(self, names: Iterable[str]) -> None:
        """Raises `ValueError` if a target is not among `names`, or is named twice."""
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


def frozen_but_adapters(parts: Mapping[str, Part], lora: Lora | None) -> Mapping[str, Part]:
    """Parts as trained: unchanged without LoRA, else frozen but for adapters."""
    if lora is None:
        return parts
    trained = dict(parts)
    for kind, part in parts.items():
        if part.frozen:
            continue
        # The first part of a model needs no gradient of its input either.
        spared = BACKWARD_WORK if kind == EMBEDDING else 1
        works = [
            block.work._replace(spared=block.work.linear.times(spared)) for block in part.blocks
        ]
        blocks = tuple(
            replace(block, frozen=block.parameters, largest_weight=0, work=work)
            for block, work in zip(part.blocks, works, strict=True)
        )
        trained[kind] = replace(part, blocks=blocks, gradient_term=NOTHING, gradient_sum=NOTHING)
    return trained

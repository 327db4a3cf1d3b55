"""Weights of which several stages hold a copy."""

from collections.abc import Mapping

from dynapipe_hpc.plan.model_shape import ModelShape


def tied_weights(shape: ModelShape, n_stages: int) -> Mapping[str, tuple[int, ...]]:
    """By name, the stages that hold a copy of a weight that is on more than one, ascending."""
    parts = [shape.parts_of_stage(stage, n_stages) for stage in range(n_stages)]
    holders = {
        name: tuple(stage for stage, held in enumerate(parts) if any(held[k] for k in kinds))
        for name, kinds in shape.architecture.tied.items()
    }
    return {name: held_by for name, held_by in holders.items() if len(held_by) > 1}

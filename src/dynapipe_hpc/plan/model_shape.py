"""The model that is planned for."""

from dynapipe_hpc.architecture.model_shape import ModelShape

__all__ = ["ModelShape"]
